package script

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	startime "go.starlark.net/lib/time"
	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSize(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "512M": 512 << 20, "512m": 512 << 20, "1.5GiB": 3 << 29, "1.5 GB": 3 << 29, "10k": 10 << 10, "1KiB": 1 << 10,
		"2T": 2 << 40, "1P": 1 << 50, "0.5K": 512, "100B": 100, "1.0000001K": 1024,
	} {
		var s Size
		if err := s.Unpack(starlark.String(text)); err != nil || int64(s) != want {
			t.Errorf("%s: got %d, %v, want %d", text, s, err, want)
		}
	}
	for _, v := range []starlark.Value{
		starlark.String(""), starlark.String("M"), starlark.String("1X"), starlark.String("-1"), starlark.String("1e3"), starlark.String("1KK"),
		starlark.String("0"), starlark.String("0.1"), starlark.String("1.2.3"), starlark.String("."), starlark.String("99999999T"), starlark.String("0x10"),
		starlark.String("1 2M"), starlark.String("NaN"), starlark.MakeInt(0), starlark.MakeInt(-5), starlark.MakeInt(1).Lsh(80),
		starlark.Float(5), starlark.Float(math.NaN()), starlark.None,
	} {
		s := Size(7)
		if err := s.Unpack(v); err == nil {
			t.Errorf("%v is accepted as %d", v, s)
		} else if s != 7 {
			t.Errorf("%v: the variable is overwritten", v)
		}
	}
}

func TestDuration(t *testing.T) {
	for _, test := range []struct {
		v    starlark.Value
		want time.Duration
	}{
		{starlark.String("1m30s"), 90 * time.Second},
		{starlark.String("0"), 0},
		{starlark.MakeInt(2), 2 * time.Second},
		{starlark.Float(0.25), 250 * time.Millisecond},
		{startime.Duration(time.Hour), time.Hour},
	} {
		if d, err := ParseDuration(test.v); err != nil || d != test.want {
			t.Errorf("%v: got %v, %v", test.v, d, err)
		}
	}
	for _, v := range []starlark.Value{
		starlark.String("soon"), starlark.String("5"), starlark.String("-1s"), starlark.MakeInt(-1), starlark.Float(math.NaN()), starlark.Float(math.Inf(1)),
		starlark.Float(1e10), starlark.Float(float64(math.MaxInt64) / 1e9), starlark.MakeInt(1).Lsh(70), starlark.None, startime.Duration(-1),
	} {
		if d, err := ParseDuration(v); err == nil {
			t.Errorf("%v is accepted as %v", v, d)
		}
	}
}

// Whatever the text, a size or duration is refused or not negative.
func FuzzSizeAndDuration(f *testing.F) {
	for _, s := range []string{"512M", "1.5GiB", "1m30s", "9223372036s", "0.0000000001P", "8191P", "8192P", "1h0.000000001s"} {
		f.Add(s, 1.5)
	}
	f.Add("", 9223372036.854775)
	f.Fuzz(func(t *testing.T, s string, seconds float64) {
		if n, err := ParseSize(s); err == nil && n < 0 {
			t.Errorf("size %q is %d", s, n)
		}
		for _, v := range []starlark.Value{starlark.String(s), starlark.Float(seconds)} {
			if d, err := ParseDuration(v); err == nil && d < 0 {
				t.Errorf("duration %v is %v", v, d)
			}
		}
	})
}

func TestUnpack(t *testing.T) {
	var a, b string
	var n int
	unpack := func(args starlark.Tuple, kwargs ...starlark.Tuple) string {
		a, b, n = "", "default", 0
		if err := Unpack(args, kwargs, "alpha", &a, "beta??", &b, "count?", &n); err != nil {
			return err.Error()
		}
		return fmt.Sprintf("%q %q %d", a, b, n)
	}
	kw := func(name string, v starlark.Value) starlark.Tuple { return starlark.Tuple{starlark.String(name), v} }
	s := starlark.String("x")
	for _, test := range []struct{ got, want string }{
		{unpack(starlark.Tuple{s}), `"x" "default" 0`},
		{unpack(starlark.Tuple{s, starlark.None, starlark.MakeInt(3)}), `"x" "default" 3`},
		{unpack(nil, kw("alpha", s), kw("beta", s)), `"x" "x" 0`},
		{unpack(nil), `missing argument "alpha"`},
		{unpack(nil, kw("beta", s)), `missing argument "alpha"`},
		{unpack(starlark.Tuple{s}, kw("alpha", s)), `alpha is given twice`},
		{unpack(starlark.Tuple{s}, kw("count", s)), `count: got string, want int`},
		{unpack(starlark.Tuple{s}, kw("count", starlark.None)), `count: got NoneType, want int`},
		{unpack(starlark.Tuple{s}, kw("cuont", s)), `unexpected keyword argument "cuont" (did you mean "count"?)`},
		{unpack(starlark.Tuple{s}, kw("zzz", s)), `unexpected keyword argument "zzz" (accepted: alpha, beta, count)`},
		{unpack(starlark.Tuple{s, s, s, s}), `takes at most 3 positional arguments, got 4`},
		{Unpack(starlark.Tuple{s}, nil).Error(), `takes no arguments, got 1`},
	} {
		if test.got != test.want {
			t.Errorf("got %s, want %s", test.got, test.want)
		}
	}
}

func TestNearest(t *testing.T) {
	names := []string{"exec", "exists", "memory", "timeout", "image", "out", "run"}
	for name, want := range map[string]string{"exce": "exec", "memmory": "memory", "Timeout": "timeout", "rnu": "run", "teimotu": "", "trace": "", "nope": "", "r": "", "zzzz": "", "": ""} {
		if got := Nearest(name, names); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestMeasure(t *testing.T) {
	chain := func(n int) starlark.Value {
		var v starlark.Value = starlark.None
		for range n {
			v = starlark.Tuple{v}
		}
		return v
	}
	shared := starlark.Value(starlark.NewList([]starlark.Value{starlark.MakeInt(1)}))
	for range 100 {
		shared = starlark.NewList([]starlark.Value{shared, shared})
	}
	cycle := starlark.NewList(nil)
	cycle.Append(starlark.NewList([]starlark.Value{cycle}))
	for _, test := range []struct {
		name string
		v    starlark.Value
		want string
	}{
		{"scalar", starlark.None, ""},
		{"ten", chain(10), ""},
		{"eleven", chain(11), "nested more than 10 levels deep"},
		{"million", chain(1_000_000), "nested more than 10 levels deep"},
		{"shared", shared, "nested more than 10 levels deep"},
		{"cycle", cycle, ""},
		{"long", starlark.String(strings.Repeat("x", 2000)), "more than 1000 bytes"},
		{"wide", starlark.Tuple(make([]starlark.Value, 2000)), "more than 1000 bytes"},
	} {
		got := ""
		if err := Measure(test.v, 10, 1000); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
	if err := Measure(shared, 200, 1000); err == nil || err.Error() != "more than 1000 bytes" {
		t.Errorf("shared: %v", err)
	}
	// A part that was measured at a low level counts where it stands lower.
	part := chain(8)
	if err := Measure(starlark.Tuple{part, starlark.Tuple{starlark.Tuple{part}}}, 10, 1000); err == nil {
		t.Error("a part that is reached in two ways is only counted where it is higher")
	}
}

func TestConvertRoundTrip(t *testing.T) {
	in := map[string]any{"a": []any{int64(1), 2.5, "x", nil, true}, "b": map[string]any{}}
	v, err := FromGo(in)
	if err != nil {
		t.Fatal(err)
	}
	out, err := ToGo("x", v, MaxNesting)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(any(in), out); d != "" {
		t.Error(d)
	}
	deep := any(nil)
	for range 100_000 {
		deep = []any{deep}
	}
	if _, err := FromGo(deep); err == nil {
		t.Error("a value of 100000 levels is converted")
	}
}

func newRun() *Run { return NewRun(Config{Steps: 1 << 40}) }

// Cancelling what runs under a context of its own leaves the thread alive, and
// the end of the outer context is never lost, whichever comes first.
func TestUnder(t *testing.T) {
	r := newRun()
	outer, stop := r.Begin(t.Context())
	defer stop(nil)
	spin, err := starlark.ExecFileOptions(&dialect, &starlark.Thread{}, "x.star", "def spin():\n  while True: pass", nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := errors.New("inner")
	_, err = r.Do(outer, nil, "main", func(th *starlark.Thread) (starlark.Value, error) {
		t1 := From(th)
		for range 50 {
			ctx, cancel := context.WithCancelCause(t1.Ctx)
			timer := time.AfterFunc(time.Millisecond, func() { cancel(ended) })
			_, err := t1.Under(ctx, func() (starlark.Value, error) { return starlark.Call(th, spin["spin"], nil, nil) })
			timer.Stop()
			if err == nil || context.Cause(ctx) != ended {
				t.Errorf("got %v", err)
			}
			if t1.Canceled() {
				t.Error("the outer context is done")
			}
			// The thread works: a function runs to its end.
			if _, err := starlark.EvalOptions(&dialect, th, "y.star", "[i for i in range(100)]", nil); err != nil {
				t.Error(err)
			}
		}
		// Now both at once.
		ctx, cancel := context.WithCancelCause(t1.Ctx)
		go func() {
			cancel(ended)
			r.Stop(errors.New("outer"))
		}()
		t1.Under(ctx, func() (starlark.Value, error) { return starlark.Call(th, spin["spin"], nil, nil) })
		<-outer.Done()
		return starlark.Call(th, spin["spin"], nil, nil)
	})
	if err == nil || context.Cause(outer).Error() != "outer" {
		t.Errorf("got %v", err)
	}
}

func TestFreezeCycles(t *testing.T) {
	globals, err := starlark.ExecFileOptions(&dialect, &starlark.Thread{}, "x.star", `
def make():
    def f():
        return f
    box = []
    def through_list():
        return box
    box.append(through_list)
    def a():
        return b
    def b():
        return (a,)
    return [f, through_list, a]
# Hidden from the freezing at the end of the file.
makers = [make]
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	v, err := starlark.Call(&starlark.Thread{}, globals["make"], nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	list := v.(*starlark.List)
	for i, ok := range []bool{false, true, false} {
		if err := Freeze(list.Index(i)); (err == nil) != ok {
			t.Errorf("element %d: %v", i, err)
		}
	}
	pair := starlark.Value(starlark.Tuple{starlark.None})
	for range 100 {
		pair = starlark.Tuple{pair, pair}
	}
	if err := Freeze(pair); err == nil {
		t.Error("freezing this would take 2^100 steps")
	}
}

var dialect = syntax.FileOptions{While: true, TopLevelControl: true, GlobalReassign: true}

func TestTitle(t *testing.T) {
	for src, want := range map[string]string{
		`"x"`: `"x"`, `1`: "1", `("a", 1)`: `("a", 1)`, `["a"]`: `["a"]`, `{"os": "debian", "n": 1}`: `{"os": "debian", "n": 1}`,
		`(1, [2, 3])`: "(1, a list of 2)", `(1, 2, 3, 4, 5)`: "a tuple of 5", `[]`: "a list of 0", `range(9)`: "a range of 9",
	} {
		v, err := starlark.EvalOptions(&syntax.FileOptions{}, &starlark.Thread{}, "", src, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := Title(v); got != want {
			t.Errorf("%s: %q, want %q", src, got, want)
		}
	}
}
