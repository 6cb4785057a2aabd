package starlib_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/starlib"
	"github.com/capybara-hq/capyrun/starlib/starlibtest"
)

func starlibtestNew(t *testing.T) *starlibtest.Fake {
	fake := starlibtest.New()
	t.Cleanup(func() { fake.Close() })
	return fake
}

func TestKeep(t *testing.T) {
	const create = "sandbox.create(name = 'plain')\nsandbox.create(name = 'kept', keep = True)\nsandbox.create(name = 'timed', ttl = '1h')\n"
	for name, test := range map[string]struct {
		policy starlib.KeepPolicy
		src    string
		want   []string
	}{
		"never":              {starlib.KeepNever, create, []string{"kept", "timed"}},
		"never, failed":      {starlib.KeepNever, create + "fail()", []string{"kept", "timed"}},
		"on failure":         {starlib.KeepOnFailure, create, []string{"kept", "timed"}},
		"on failure, failed": {starlib.KeepOnFailure, create + "fail()", []string{"kept", "plain", "timed"}},
		"always":             {starlib.KeepAlways, create, []string{"kept", "plain", "timed"}},
	} {
		t.Run(name, func(t *testing.T) {
			fake := starlibtestNew(t)
			var log []string
			res, err := starlib.New(fake, starlib.Options{Keep: test.policy, Events: event.Func(func(e event.Event) {
				if e.Type == event.Log {
					log = append(log, e.Text)
				}
			})}).RunSource(t.Context(), "main.star", []byte(test.src), nil)
			if failed := strings.HasSuffix(test.src, "fail()"); failed != (err != nil) {
				t.Fatal(err)
			}
			if d := cmp.Diff(test.want, fake.Names()); d != "" {
				t.Error(d)
			}
			list, listErr := fake.List(t.Context())
			if listErr != nil {
				t.Fatal(listErr)
			}
			for _, info := range list {
				if !info.Keep && info.Expires.IsZero() {
					t.Errorf("%s ends with its owner", info.Name)
				}
			}
			if err == nil {
				if d := cmp.Diff(test.want, res.Kept); d != "" {
					t.Error(d)
				}
			}
			if d := cmp.Diff([]string{"kept: " + strings.Join(test.want, ", ")}, log); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestDeferredCalls(t *testing.T) {
	const src = `
load("lib.star", "note")
sb = sandbox.create(name = "a")
flow.defer(note, "first")
flow.defer(lambda: note(sb.status))
def main(end):
    flow.defer(note, "second", suffix = "!")
    flow.defer(lambda: flow.defer(note, "deferred by a deferred call"))
    flow.parallel([lambda: flow.defer(note, "by a branch")])
    if end == "fail":
        fail("main's failure")
    if end == "wait":
        print("waiting")
        flow.sleep("1h")
    if end == "spin":
        while True:
            pass
`
	want := []string{"by a branch", "deferred by a deferred call", "second!", "running", "first"}
	for end, kind := range map[string]starlib.Kind{
		"return": "",
		"fail":   starlib.KindScript,
		"wait":   starlib.KindCanceled,
		"spin":   starlib.KindLimit,
	} {
		t.Run(end, func(t *testing.T) {
			fake := starlibtestNew(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var noted []string
			_, err := starlib.New(fake, starlib.Options{
				FS: mapFS(map[string]string{
					"main.star": src,
					"lib.star":  "def note(text, suffix = ''): print('note ' + text + suffix)",
				}),
				Limits: starlib.Limits{Steps: 100_000},
				Print: func(line string) {
					if text, ok := strings.CutPrefix(line, "note "); ok {
						noted = append(noted, text)
					} else {
						cancel()
					}
				},
			}).RunFile(ctx, "main.star", starlib.Params{"end": end})
			if kind == "" {
				if err != nil {
					t.Fatal(err)
				}
			} else if e := wantKind(t, err, kind); e.Cleanup != nil {
				t.Error(e.Cleanup)
			}
			if d := cmp.Diff(want, noted); d != "" {
				t.Error(d)
			}
			if left := fake.Names(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestCleanupFailures(t *testing.T) {
	boom := errors.New("boom")
	t.Run("after success", func(t *testing.T) {
		fake := starlibtestNew(t)
		fake.Fail("destroy", boom)
		res, err := starlib.New(fake, starlib.Options{}).RunSource(t.Context(), "main.star", []byte("sandbox.create(name = 'a')\nflow.defer(fail, 'deferred failure')\ndef main(): return 1"), nil)
		e := wantKind(t, err, starlib.KindCleanup)
		if !errors.Is(err, boom) || !strings.Contains(e.Msg, "deferred failure") || !strings.Contains(e.Msg, "sandbox a: destroy: boom") {
			t.Error(e.Msg)
		}
		if res == nil || res.Value != int64(1) {
			t.Errorf("the result is lost: %v", res)
		}
	})
	t.Run("after failure", func(t *testing.T) {
		fake := starlibtestNew(t)
		fake.Fail("destroy", boom)
		_, err := starlib.New(fake, starlib.Options{}).RunSource(t.Context(), "main.star", []byte("sandbox.create(name = 'a')\nfail('first')"), nil)
		e := wantKind(t, err, starlib.KindScript)
		if e.Msg != "fail: first" || !errors.Is(e.Cleanup, boom) || !errors.Is(err, boom) {
			t.Errorf("%s; %v", e.Msg, e.Cleanup)
		}
		if out := rendered(e); !strings.HasSuffix(out, "error: fail: first\ncleanup: sandbox a: destroy: boom\n") {
			t.Error(out)
		}
	})
	t.Run("grace", func(t *testing.T) {
		fake := starlibtestNew(t)
		at := time.Now()
		_, err := starlib.New(fake, starlib.Options{CleanupGrace: 50 * time.Millisecond}).RunSource(t.Context(), "main.star", []byte("sandbox.create()\nflow.defer(flow.sleep, '1h')\nflow.defer(flow.sleep, '1h')"), nil)
		e := wantKind(t, err, starlib.KindCleanup)
		if !strings.Contains(e.Msg, "deferred calls took longer than 50ms") {
			t.Error(e.Msg)
		}
		if d := time.Since(at); d > 5*time.Second {
			t.Errorf("it took %v", d)
		}
		if left := fake.Names(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}

// A creation that succeeds although the run was cancelled meanwhile does not
// leave its sandbox.
func TestCreateInACancelledRun(t *testing.T) {
	fake := starlibtestNew(t)
	ctx, cancel := context.WithCancel(t.Context())
	p := cancelInCreate{fake, cancel}
	_, err := starlib.New(p, starlib.Options{}).RunSource(ctx, "main.star", []byte("sandbox.create()\nwhile True: pass"), nil)
	wantKind(t, err, starlib.KindCanceled)
	if len(fake.Created()) != 1 || len(fake.Names()) != 0 {
		t.Errorf("created %v, left %v", fake.Created(), fake.Names())
	}
}

type cancelInCreate struct {
	provider.Provider
	cancel func()
}

func (p cancelInCreate) Create(ctx context.Context, spec provider.Spec) (provider.Sandbox, error) {
	sb, err := p.Provider.Create(ctx, spec)
	p.cancel()
	return sb, err
}

// Many runs on one runtime do not see each other.
func TestRunsAtOnce(t *testing.T) {
	fake := starlibtestNew(t)
	rt := starlib.New(fake, starlib.Options{})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			res, err := rt.RunSource(t.Context(), "main.star", []byte(`
x = []
def main(n):
    sb = sandbox.create()
    sb.write("n", str(n))
    return flow.map(lambda i: int(sb.read("n")) + i, range(5))
`), starlib.Params{"n": i})
			if err != nil {
				t.Error(err)
				return
			}
			n := int64(i)
			if d := cmp.Diff([]any{n, n + 1, n + 2, n + 3, n + 4}, res.Value); d != "" {
				t.Error(d)
			}
		})
	}
	wg.Wait()
	if left := fake.Names(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
