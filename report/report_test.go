package report

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/capybara-hq/capyrun/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// at returns an event that happens after d.
func at(d time.Duration, e event.Event) event.Event {
	e.Time = t0.Add(d)
	if e.Type == event.End {
		e.Duration = d
	}
	return e
}

func start(d time.Duration, id, parent event.SpanID, kind event.Kind, name string) event.Event {
	return at(d, event.Event{Type: event.Start, Span: id, Parent: parent, Kind: kind, Name: name})
}

func end(d time.Duration, id event.SpanID, kind event.Kind, err string, attrs map[string]any) event.Event {
	return at(d, event.Event{Type: event.End, Span: id, Kind: kind, Error: err, Attrs: attrs})
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain text\n\tand é 世":         "plain text\n\tand é 世",
		"\x1b[31mred\x1b[0m":            "red",
		"\x1b]0;title\x07after":         "after",
		"\x1b]8;;http://x\x1b\\link":    "link",
		"\x1bPq#0;2\x1b\\x":             "x",
		"\x1b(Bcharset":                 "charset",
		"\x1bcreset":                    "reset",
		"\x1b[2J\x1b[Hwiped":            "wiped",
		"cut \x1b[31":                   "cut ",
		"cut \x1b":                      "cut ",
		"\u009b31mC1":                   "C1",
		"\u009d0;t\u009crest":           "rest",
		"\x1b[3\nnext line":             "\nnext line",
		"\x1b]unended\nnext line":       "\nnext line",
		"back\b\bspace\a\rhome\x7f\x00": "backspacehome",
		"\u202ereversed\u2066":          "reversed",
		"bad \xff\xfe utf8":             "bad \ufffd\ufffd utf8",
		"kept \ufffd":                   "kept \ufffd",
		"\x9b31m raw C1 byte":           "\ufffd31m raw C1 byte",
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzClean(f *testing.F) {
	for _, s := range []string{"a\x1b[1mb", "\x1b]0;x\x07", "\xff\u009b\x1b", "\x1b\x1b[[\x1b]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Clean(s)
		for _, r := range got {
			if r < 0x20 && r != '\n' && r != '\t' || r >= 0x7f && r <= 0x9f || r >= 0x202a && r <= 0x202e {
				t.Fatalf("Clean(%q) = %q holds %U", s, got, r)
			}
		}
		if again := Clean(got); again != got {
			t.Fatalf("Clean is not stable: %q, then %q", got, again)
		}
		for _, columns := range []int{0, 1, 3, 10} {
			if w := width(fit(line(s), columns)); w > columns {
				t.Fatalf("fit(%q, %d) takes %d columns", s, columns, w)
			}
		}
	})
}

func TestPlain(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out, ProgressOptions{})
	for _, e := range []event.Event{
		start(0, 1, 0, event.KindRun, "flow.star"),
		start(0, 2, 1, event.KindStep, "build"),
		start(0, 3, 2, event.KindExec, "make\nall"),
		at(0, event.Event{Type: event.Output, Span: 3, Stream: "stdout", Text: "cc\n"}),
		at(0, event.Event{Type: event.Print, Text: "hello \x1b[31mred"}),
		end(1500*time.Millisecond, 3, event.KindExec, "exit 2", map[string]any{"exit_code": 2}),
		at(0, event.Event{Type: event.Log, Level: event.Warning, Text: "no disk limit"}),
		start(0, 4, 2, event.KindFile, "write x"),
		end(time.Millisecond, 4, event.KindFile, "", nil),
		end(2*time.Second, 2, event.KindStep, "exit 2", nil),
		end(75*time.Second, 1, event.KindRun, "exit 2", nil),
	} {
		p.Emit(e)
	}
	p.Close()
	p.Close()
	p.Emit(at(0, event.Event{Type: event.Print, Text: "after close"}))
	want := `hello red
FAIL   1.50s  build / $ make all (exit 2)
warning: no disk limit
FAIL   2.00s  build
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestNone(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out, ProgressOptions{Mode: None})
	p.Emit(start(0, 1, 0, event.KindStep, "build"))
	p.Emit(at(0, event.Event{Type: event.Print, Text: "printed"}))
	p.Emit(at(0, event.Event{Type: event.Log, Level: event.Info, Text: "info"}))
	p.Emit(at(0, event.Event{Type: event.Log, Level: event.Warning, Text: "warned"}))
	p.Emit(end(time.Second, 1, event.KindStep, "", nil))
	p.Close()
	if got, want := out.String(), "printed\nwarning: warned\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// terminal is as much of a terminal as the display uses: it shows what a person
// would see, and fails on what it does not know.
type terminal struct {
	t       *testing.T
	columns int
	rows    [][]rune
	x, y    int
	hidden  bool
	writes  int
}

func (s *terminal) Write(b []byte) (int, error) {
	s.writes++
	text := string(b)
	for text != "" {
		switch {
		case strings.HasPrefix(text, "\x1b[?25l"):
			s.hidden, text = true, text[6:]
		case strings.HasPrefix(text, "\x1b[?25h"):
			s.hidden, text = false, text[6:]
		case strings.HasPrefix(text, "\x1b[J"):
			s.rows = append(s.rows[:s.y:s.y], nil)
			text = text[3:]
		case strings.HasPrefix(text, "\x1b["):
			end := strings.IndexAny(text, "Am")
			if end < 0 {
				s.t.Fatalf("unknown sequence %q", text)
			}
			if text[end] == 'A' {
				var up int
				fmt.Sscanf(text[2:end], "%d", &up)
				if s.y -= up; s.y < 0 {
					s.t.Fatalf("moved above the top by %d", -s.y)
				}
			}
			text = text[end+1:]
		case text[0] == '\r':
			s.x, text = 0, text[1:]
		case text[0] == '\n':
			s.x, text = 0, text[1:]
			s.y++
		default:
			r := []rune(text)[0]
			if s.x == s.columns {
				s.x = 0
				s.y++
			}
			for len(s.rows) <= s.y {
				s.rows = append(s.rows, nil)
			}
			s.rows[s.y] = append(s.rows[s.y][:s.x], r)
			s.x++
			text = text[len(string(r)):]
		}
	}
	return len(b), nil
}

func (s *terminal) text() string {
	var b strings.Builder
	for _, r := range s.rows {
		b.WriteString(string(r) + "\n")
	}
	return strings.TrimRight(b.String(), "\n")
}

// narrow wraps what stands as most terminals do when they are made narrower.
func (s *terminal) narrow(columns int) {
	var rows [][]rune
	for _, r := range s.rows {
		for len(r) > columns {
			rows = append(rows, r[:columns:columns])
			r = r[columns:]
		}
		rows = append(rows, r)
	}
	s.y += len(rows) - len(s.rows)
	s.rows, s.columns = rows, columns
}

func live(t *testing.T, columns int) (*Progress, *terminal, func(time.Duration) string) {
	term := &terminal{t: t, columns: columns}
	p := newProgress(term, ProgressOptions{Mode: TTY, Color: true, Size: func() (int, int) { return term.columns, 24 }})
	close(p.stopped) // the test redraws, not a clock
	return p, term, func(now time.Duration) string {
		io.WriteString(term, p.frame(t0.Add(now)))
		return term.text()
	}
}

func TestLiveTree(t *testing.T) {
	p, term, redraw := live(t, 40)
	p.Emit(start(0, 1, 0, event.KindRun, "flow.star"))
	p.Emit(start(0, 2, 1, event.KindStep, "build"))
	p.Emit(start(time.Second, 3, 2, event.KindExec, "make all "+strings.Repeat("x", 80)))
	p.Emit(at(0, event.Event{Type: event.Output, Span: 3, Stream: "stdout", Text: "cc a.c\ncc \x1b[2Jb"}))
	p.Emit(at(0, event.Event{Type: event.Output, Span: 3, Stream: "stdout", Text: ".c"}))
	want := `flow.star  1.5s
  build  1.5s
    $ make all xxxxxxxxxxxxxx...  500ms
      cc b.c`
	if diff := cmp.Diff(want, redraw(1500*time.Millisecond)); diff != "" {
		t.Fatal(diff)
	}
	if !term.hidden {
		t.Error("the cursor is shown")
	}

	p.Emit(at(0, event.Event{Type: event.Print, Text: "printed"}))
	p.Emit(end(2*time.Second, 3, event.KindExec, "", nil))
	p.Emit(start(2*time.Second, 4, 2, event.KindPull, "pull debian"))
	p.Emit(at(0, event.Event{Type: event.Progress, Span: 4, Text: "10%"}))
	want = `printed
flow.star  2s
  build  2s
    pull debian: 10%  0s`
	if diff := cmp.Diff(want, redraw(2*time.Second)); diff != "" {
		t.Fatal(diff)
	}

	p.Emit(end(3*time.Second, 4, event.KindPull, "", nil))
	p.Emit(end(3*time.Second, 2, event.KindStep, "", nil))
	p.Emit(end(3*time.Second, 1, event.KindRun, "failed", nil))
	p.Message("bye")
	p.Close()
	want = `printed
ok     3.00s  build / pull debian
ok     3.00s  build
bye`
	if diff := cmp.Diff(want, term.text()); diff != "" {
		t.Fatal(diff)
	}
	if term.hidden {
		t.Error("the cursor is still hidden")
	}
}

func TestLiveTreeIsQuietWhereNothingChanges(t *testing.T) {
	p, term, redraw := live(t, 80)
	p.Emit(start(0, 1, 0, event.KindRun, "flow.star"))
	redraw(time.Second)
	before := len(term.text())
	if got := p.frame(t0.Add(time.Second + 20*time.Millisecond)); got != "" {
		t.Errorf("redrew %q", got)
	}
	if before == 0 {
		t.Error("nothing was drawn")
	}
}

func TestLiveTreeAfterResize(t *testing.T) {
	p, term, redraw := live(t, 60)
	p.Emit(start(0, 1, 0, event.KindRun, strings.Repeat("a", 50)))
	p.Emit(start(0, 2, 1, event.KindStep, strings.Repeat("b", 50)))
	redraw(0)
	term.narrow(20)
	want := "aaaaaaaaaaaa...  1s\n  bbbbbbbbbb...  1s"
	if diff := cmp.Diff(want, redraw(time.Second)); diff != "" {
		t.Error(diff)
	}
	p.Close()
	if got := term.text(); got != "" {
		t.Errorf("left %q", got)
	}
}

func TestLiveTreeKeepsHalfOfTheHeight(t *testing.T) {
	p, _, redraw := live(t, 60)
	p.Emit(start(0, 1, 0, event.KindRun, "run"))
	for i := range 100 {
		p.Emit(start(0, event.SpanID(i+2), 1, event.KindBranch, fmt.Sprintf("branch %d", i)))
	}
	lines := strings.Split(redraw(0), "\n")
	if len(lines) != 12 || lines[11] != "  ... and 90 more" {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
	p.Close()
}

func TestTail(t *testing.T) {
	for in, want := range map[string]string{
		"one\ntwo\n":                        "two",
		"one\n\n  \n":                       "one",
		"10%\r20%\r30%":                     "30%",
		"done\n10%\r\n":                     "10%",
		"":                                  "",
		"x\n" + strings.Repeat("y", 10_000): strings.Repeat("y", maxOpen),
	} {
		for _, size := range []int{1, 3, len(in) + 1} {
			var tail tail
			for rest := in; rest != ""; {
				n := min(size, len(rest))
				tail.add("stdout", rest[:n])
				rest = rest[n:]
			}
			if got := tail.last(); got != want {
				t.Errorf("tail of %.20q in pieces of %d = %.20q, want %.20q", in, size, got, want)
			}
		}
	}
}

// TestRedrawRate holds the real clock's redraws to ten a second.
func TestRedrawRate(t *testing.T) {
	writes := make(chan string, 1000)
	p := NewProgress(writer(func(b []byte) { writes <- string(b) }), ProgressOptions{Mode: TTY})
	begin := time.Now()
	p.Emit(event.Event{Type: event.Start, Span: 1, Time: begin, Name: "run"})
	for i := range 1000 {
		p.Emit(event.Event{Type: event.Progress, Span: 1, Text: fmt.Sprint(i)})
		if i%100 == 0 {
			<-writes
		}
	}
	p.Close()
	if most := int(time.Since(begin)/interval) + 2; len(writes)+10 > most {
		t.Errorf("%d writes in %v", len(writes)+10, time.Since(begin))
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) {
	if len(b) > 0 {
		w(b)
	}
	return len(b), nil
}

func TestJSONLines(t *testing.T) {
	var out bytes.Buffer
	j := NewJSONLines(&out)
	j.Emit(at(0, event.Event{Type: event.Output, Span: 7, Stream: "stderr", Text: "a\nb\xff"}))
	if got, want := out.String(), `{"time":"2026-01-02T03:04:05Z","type":"output","span":7,"stream":"stderr","text":"a\nb`+`\ufffd"}`+"\n"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if err := j.Err(); err != nil {
		t.Error(err)
	}

	full := errors.New("disk full")
	j = NewJSONLines(failing{full})
	j.Emit(event.Event{})
	j.Emit(event.Event{})
	if err := j.Err(); !errors.Is(err, full) {
		t.Errorf("Err() = %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
