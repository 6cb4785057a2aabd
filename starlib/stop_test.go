package starlib_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/fstest"
	"time"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/starlib"
	"github.com/capybara-hq/capyrun/starlib/starlibtest"
)

// endless are workflows that only end when they are stopped. They print a line
// when they have begun.
var endless = map[string]string{
	"loop":            `print("go")` + "\nwhile True: pass",
	"main":            "def main():\n  print('go')\n  while True: pass",
	"for":             "print('go')\nfor i in range(1 << 62): pass",
	"strings":         "print('go')\nwhile True: x = 'a' * 100000",
	"lists":           "print('go')\nx = []\nwhile True: x = [i for i in range(1000)]",
	"sorted":          "print('go')\ndef key(x):\n  for i in range(100): pass\n  return x\nsorted(range(1 << 18), key = key)",
	"parallel":        "print('go')\ndef spin():\n  while True: pass\nflow.parallel([spin] * 8)",
	"nested parallel": "print('go')\ndef spin():\n  while True: pass\nflow.parallel([lambda: flow.parallel([spin] * 4)] * 4)",
	"load":            "print('go')\nload('endless.star', 'x')",
	"sleep":           "print('go')\nflow.sleep('1h')",
	"retry":           "print('go')\nflow.retry(lambda: fail('x'), attempts = 1 << 40, delay = 0)",
	"retry delay":     "print('go')\nflow.retry(lambda: fail('x'), delay = '1h', max_delay = '1h')",
	"wait_until":      "print('go')\nflow.wait_until(lambda: False, timeout = '1h')",
	"within":          "print('go')\nflow.within('1h', lambda: flow.sleep('1h'))",
	"attempt":         "print('go')\nwhile True: flow.attempt(flow.sleep, '1h')",
	"attempt loop":    "def spin():\n  while True: pass\nprint('go')\nwhile True: flow.attempt(spin)",
	"assert.fails":    "print('go')\nwhile True: assert.fails(lambda: flow.sleep('1h'))",
	"step":            "print('go')\nflow.step('s', lambda: flow.sleep('1h'))",
	"exec":            "sb = sandbox.create()\nprint('go')\nsb.exec('sleep 3600', timeout = '1h')",
	"exec branches":   "sb = sandbox.create()\nprint('go')\nflow.parallel([lambda: sb.exec('sleep 3600', timeout = '1h')] * 20)",
	"on_line":         "sb = sandbox.create()\nprint('go')\ndef spin(line):\n  while True: pass\nsb.exec('echo x', on_line = spin)",
	"wait":            "sb = sandbox.create()\nprint('go')\nsb.spawn('sleep 3600').wait()",
	"wait lines":      "sb = sandbox.create()\nprint('go')\nsb.spawn('sleep 3600').wait(on_line = print)",
	"wait_port":       "sb = sandbox.create()\nprint('go')\nsb.wait_port(80, timeout = '1h')",
	"print":           "while True: print('go')",
	"create":          "print('go')\nwhile True: sandbox.create(name = 'x', replace = True)",
}

// stopTime is how long a stopped workflow may take to end.
const stopTime = 500 * time.Millisecond

func TestCancelStopsEverything(t *testing.T) {
	files := fstest.MapFS{"endless.star": {Data: []byte("x = 1\nwhile True: pass")}}
	for name, src := range endless {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := starlibtest.New()
			defer fake.Close()
			began := make(chan struct{}, 1)
			rt := starlib.New(fake, starlib.Options{
				FS:     files,
				Limits: starlib.Limits{Steps: -1, Heap: -1, Output: -1},
				Print: func(string) {
					select {
					case began <- struct{}{}:
					default:
					}
				},
				Events: event.Func(func(event.Event) {}),
			})
			cause := errors.New("the user has had enough")
			ctx, cancel := context.WithCancelCause(t.Context())
			ended := make(chan error, 1)
			go func() {
				_, err := rt.RunSource(ctx, "main.star", []byte(src), nil)
				ended <- err
			}()
			select {
			case <-began:
			case err := <-ended:
				t.Fatalf("ended by itself: %v", err)
			}
			cancel(cause)
			at := time.Now()
			err := <-ended
			if d := time.Since(at); d > stopTime && !raceEnabled {
				t.Errorf("it took %v", d)
			}
			var e *starlib.Error
			if !errors.As(err, &e) || e.Kind != starlib.KindCanceled || !errors.Is(err, cause) {
				t.Errorf("got %v, want it canceled by the cause", err)
			}
			if left := fake.Names(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestDeadline(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := starlib.New(nil, starlib.Options{}).RunSource(ctx, "main.star", []byte("flow.sleep('1h')"), nil)
	wantKind(t, err, starlib.KindTimeout)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v does not match context.DeadlineExceeded", err)
	}
}

func TestCanceledBeforeTheStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := starlib.New(nil, starlib.Options{}).RunSource(ctx, "main.star", []byte("x = 1"), nil)
	wantKind(t, err, starlib.KindCanceled)
}

func wantKind(t *testing.T, err error, kind starlib.Kind) *starlib.Error {
	t.Helper()
	var e *starlib.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want an error of kind %q", err, kind)
	}
	if e.Kind != kind {
		t.Fatalf("got kind %q, want %q:\n%s", e.Kind, kind, rendered(e))
	}
	return e
}

func TestLimits(t *testing.T) {
	for name, test := range map[string]struct {
		limits starlib.Limits
		src    string
		msg    string
	}{
		"steps":          {starlib.Limits{Steps: 100_000}, "while True: pass", "the script took more than 100000 steps"},
		"steps parallel": {starlib.Limits{Steps: 100_000}, "def f():\n  while True: pass\nflow.parallel([f] * 4)", "the script took more than 100000 steps"},
		"steps attempt":  {starlib.Limits{Steps: 100_000}, "def f():\n  while True: pass\nwhile True: flow.attempt(f)", "the script took more than 100000 steps"},
		"few steps":      {starlib.Limits{Steps: 5}, "while True: pass", "the script took more than 5 steps"},
		"time":           {starlib.Limits{Time: 20 * time.Millisecond}, "flow.sleep('1h')", "the script ran longer than 20ms"},
		"output":         {starlib.Limits{Output: 1000}, "while True: print('x' * 100)", "the script printed more than 1000 bytes"},
		"result":         {starlib.Limits{Output: 1000}, "def main(): return 'x' * 1001", "the result is more than 1000 bytes"},
		"result escaped": {starlib.Limits{Output: 1000}, "def main(): return '\\n' * 900", "the result is 1802 bytes as JSON, more than 1000"},
		"shared result":  {starlib.Limits{}, "x = [1]\nfor _ in range(100): x = [x, x]\ndef main(): return x", "the result is more than 16777216 bytes"},
		"depth":          {starlib.Limits{}, "x = []\nwhile True: x = [x]", "the script's values are nested more than 10000 levels deep"},
		"depth tuple":    {starlib.Limits{}, "def main():\n  x = ()\n  while True: x = (x,)", "the script's values are nested more than 10000 levels deep"},
		"depth closure":  {starlib.Limits{}, "def wrap(f): return lambda: f\nx = None\nwhile True: x = wrap(x)", "the script's values are nested more than 10000 levels deep"},
		"heap":           {starlib.Limits{Heap: 16 << 20}, "x = []\nwhile True: x.append('a' * 1000)", "the script holds more than 16777216 bytes of memory"},
		"heap one step":  {starlib.Limits{Heap: 16 << 20}, "x = 'a' * (40 << 20)\nwhile True: pass", "the script holds more than 16777216 bytes of memory"},
		"heap parallel":  {starlib.Limits{Heap: 16 << 20}, "def f():\n  x = []\n  while True: x.append('a' * 1000)\nflow.parallel([f] * 4)", "the script holds more than 16777216 bytes of memory"},
	} {
		t.Run(name, func(t *testing.T) {
			runtime.GC() // what earlier tests left would count for this one
			_, err := starlib.New(nil, starlib.Options{Limits: test.limits}).RunSource(t.Context(), "main.star", []byte(test.src), nil)
			if e := wantKind(t, err, starlib.KindLimit); e.Msg != test.msg {
				t.Errorf("got %q, want %q", e.Msg, test.msg)
			}
		})
	}
}

// A script that makes much garbage but holds little stays within the limit.
func TestHeapCountsWhatIsHeld(t *testing.T) {
	runtime.GC()
	rt := starlib.New(nil, starlib.Options{Limits: starlib.Limits{Heap: 32 << 20}})
	_, err := rt.RunSource(t.Context(), "main.star", []byte("for i in range(100): x = 'a' * 1000000"), nil)
	if err != nil {
		t.Fatal(err)
	}
}

// The budget of steps belongs to the run: threads give back what they do not
// use.
func TestManyThreadsShareTheBudget(t *testing.T) {
	rt := starlib.New(nil, starlib.Options{Limits: starlib.Limits{Steps: 1_000_000}})
	res, err := rt.RunSource(t.Context(), "main.star", []byte("def f(x): return x\nflow.map(f, range(5000))"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.Steps < 5000 || res.Steps > 200_000 {
		t.Errorf("%d steps", res.Steps)
	}
}
