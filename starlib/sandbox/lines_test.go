package sandbox

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
)

func split(chunks ...string) []string {
	var l lineSplitter
	lines := []string{}
	add := func(line string) { lines = append(lines, line) }
	for _, c := range chunks {
		l.add([]byte(c), add)
	}
	l.flush(add)
	return lines
}

func TestLineSplitter(t *testing.T) {
	long := strings.Repeat("x", maxLine-1)
	for _, test := range []struct {
		chunks, want []string
	}{
		{nil, []string{}},
		{[]string{"a\nb\n"}, []string{"a", "b"}},
		{[]string{"a", "b\r", "\nc"}, []string{"ab", "c"}},
		{[]string{"\n\n"}, []string{"", ""}},
		{[]string{"é"[:1], "é"[1:] + "\n"}, []string{"é"}},
		{[]string{"\xff\n"}, []string{"\uFFFD"}},
		{[]string{long + "ab\n"}, []string{long + "a", "b"}},
		{[]string{long, "é\n"}, []string{long, "é"}}, // no character is split
		{[]string{long + "é", "\n"}, []string{long, "é"}},
		{[]string{long + "a", "\n"}, []string{long + "a"}},
	} {
		if d := cmp.Diff(test.want, split(test.chunks...)); d != "" {
			t.Errorf("%.40q: %s", test.chunks, d)
		}
	}
}

// However the output is cut into chunks, the lines are the same, valid, and not
// too long.
func FuzzLineSplitter(f *testing.F) {
	f.Add("a\nb", 1)
	f.Add("é\r\n\xff\n\n", 2)
	f.Add(strings.Repeat("é", maxLine), 1000)
	f.Fuzz(func(t *testing.T, text string, size int) {
		size = max(size, 1)
		var chunks []string
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			chunks = append(chunks, rest[:n])
			rest = rest[n:]
		}
		got := split(chunks...)
		for _, line := range got {
			if !utf8.ValidString(line) || strings.Contains(line, "\n") || len(line) > 3*maxLine {
				t.Errorf("line %.40q", line)
			}
		}
		if len(text) < maxLine {
			if d := cmp.Diff(split(text), got); d != "" {
				t.Error(d)
			}
		}
	})
}

// What comes as events is the output, cut at lines, up to the bound.
func FuzzOutputEvents(f *testing.F) {
	f.Add("a\nb", 1, 10)
	f.Add(strings.Repeat("line\n", 100), 7, 333)
	f.Fuzz(func(t *testing.T, text string, size, bound int) {
		if !utf8.ValidString(text) {
			return
		}
		size, bound = max(size, 1), max(bound, 0)
		var got strings.Builder
		ctx := event.NewContext(t.Context(), event.Func(func(e event.Event) { got.WriteString(e.Text) }))
		out := &outputEvents{ctx: ctx, left: int64(bound)}
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			out.add(provider.Stdout, []byte(rest[:n]))
			rest = rest[n:]
		}
		out.flush()
		want := text[:min(bound, len(text))]
		if !utf8.ValidString(want) {
			return // the cut splits a character, which becomes the replacement
		}
		if got.String() != want {
			t.Errorf("got %q, want %q", got.String(), want)
		}
	})
}

// TestProgressBarsShow: what a command draws over and over is seen as it goes.
func TestProgressBarsShow(t *testing.T) {
	var seen []string
	ctx := event.NewContext(t.Context(), event.Func(func(e event.Event) { seen = append(seen, e.Text) }))
	out := &outputEvents{ctx: ctx, left: 1 << 10}
	for _, chunk := range []string{"10%\r", "20%\r30%", "\r", "done\r\n"} {
		out.add(provider.Stdout, []byte(chunk))
	}
	if d := cmp.Diff([]string{"10%\r", "20%\r", "30%\r", "done\r\n"}, seen); d != "" {
		t.Error(d)
	}
}

func TestTail(t *testing.T) {
	if got := tail([]byte("a\nb\nc\n"), 2); cmp.Diff([]string{"... 1 more lines", "b", "c"}, got) != "" {
		t.Errorf("%q", got)
	}
	if got := tail(nil, 2); got != nil {
		t.Errorf("%q", got)
	}
}
