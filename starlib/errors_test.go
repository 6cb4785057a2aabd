package starlib_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/starlib"
	"github.com/capybara-hq/capyrun/starlib/starlibtest"
)

// The backtrace leads through files, branches and callbacks.
func TestRender(t *testing.T) {
	fake := starlibtestNew(t)
	fake.Handle("make test", func(_ context.Context, c *starlibtest.Call) int {
		fmt.Fprintln(c.Stdout, "compiling")
		for i := range 30 {
			fmt.Fprintf(c.Stderr, "\tline %d\x1b[31m\n", i)
		}
		return 2
	})
	rt := starlib.New(fake, starlib.Options{FS: mapFS(map[string]string{
		"flows/main.star": `load("../lib/build.star", "build")

def main():
	sb = sandbox.create(name = "web")
	flow.step("all", lambda: flow.map(lambda n: build(sb, n), ["fast", "slow"], limit = 1))
`,
		"lib/build.star": `
def build(sb, name):
    é = "wide" + sb.exec("make test").stdout
`,
	})})
	_, err := rt.RunFile(t.Context(), "flows/main.star", nil)
	e := wantKind(t, err, starlib.KindCommand)
	var lines []string
	for i := 10; i < 30; i++ {
		lines = append(lines, fmt.Sprintf("    \tline %d\uFFFD[31m\n", i))
	}
	want := `flows/main.star:5:11: in main
    flow.step("all", lambda: flow.map(lambda n: build(sb, n), ["fast", "slow"], limit = 1))
             ^
flows/main.star:5:35: in lambda
    flow.step("all", lambda: flow.map(lambda n: build(sb, n), ["fast", "slow"], limit = 1))
                                     ^
flows/main.star:5:51: in lambda
    flow.step("all", lambda: flow.map(lambda n: build(sb, n), ["fast", "slow"], limit = 1))
                                                     ^
lib/build.star:3:25: in build
    é = "wide" + sb.exec("make test").stdout
                        ^
error: flow.map: branch 1: "fast": sandbox.exec: sandbox web: exit code 2: make test
  stdout:
    compiling
  stderr:
    ... 10 more lines
` + strings.Join(lines, "")
	if d := cmp.Diff(want, rendered(e)); d != "" {
		t.Error(d)
	}
	if want := "lib/build.star:3:25: flow.map: branch 1: \"fast\": sandbox.exec: sandbox web: exit code 2: make test"; e.Error() != want {
		t.Errorf("got %s", e.Error())
	}
	var colored strings.Builder
	e.Render(&colored, true)
	if !strings.Contains(colored.String(), "\x1b[1;31merror:\x1b[0m flow.map") {
		t.Error(colored.String())
	}
}

// The path is shown as it was given.
func TestShownPath(t *testing.T) {
	dir := tree(t, map[string]string{"a/main.star": "load('lib/x.star', 'x')", "a/lib/x.star": "x = 1 // 0"})
	t.Chdir(dir)
	_, err := starlib.New(nil, starlib.Options{}).RunFile(t.Context(), "a/main.star", nil)
	e := wantKind(t, err, starlib.KindScript)
	var got []string
	for _, f := range e.Backtrace {
		got = append(got, f.String())
	}
	if d := cmp.Diff([]string{"a/main.star:1:1", "a/lib/x.star:1:7"}, got); d != "" {
		t.Error(d)
	}
}

func TestKinds(t *testing.T) {
	for want, test := range map[starlib.Kind]struct {
		err  error
		src  string
		kind string
	}{
		starlib.KindEnvironment: {&provider.Error{Kind: provider.ErrUnreachable, Hint: "start it"}, "sandbox.create()", "engine unreachable"},
		starlib.KindScript:      {&provider.Error{Kind: provider.ErrExists}, "sandbox.create()", "already exists"},
		starlib.KindAssertion:   {nil, "assert.eq(1, 2)", "assertion failed"},
		starlib.KindCommand:     {nil, "sandbox.create().exec('false')", "command failed"},
		starlib.KindSyntax:      {nil, "x = y", ""},
	} {
		fake := starlibtestNew(t)
		fake.Fail("create", test.err)
		_, err := starlib.New(fake, starlib.Options{}).RunSource(t.Context(), "main.star", []byte(test.src), nil)
		e := wantKind(t, err, want)
		if e.Reason != test.kind {
			t.Errorf("%s: reason %q, want %q", test.src, e.Reason, test.kind)
		}
		if test.err != nil && !errors.Is(err, test.err) {
			t.Errorf("%v does not match its cause", err)
		}
	}
	_, err := starlib.New(nil, starlib.Options{}).RunSource(t.Context(), "main.star", []byte("sandbox.create()"), nil)
	wantKind(t, err, starlib.KindEnvironment)
}

// Errors of embedders' builtins keep their identity, with and without threads
// between.
func TestEmbeddersErrors(t *testing.T) {
	mine := errors.New("mine")
	rt := starlib.New(nil, starlib.Options{Builtins: starlark.StringDict{
		"broken": starlark.NewBuiltin("broken", func(*starlark.Thread, *starlark.Builtin, starlark.Tuple, []starlark.Tuple) (starlark.Value, error) {
			return nil, fmt.Errorf("broken: %w", mine)
		}),
	}})
	for _, src := range []string{"broken()", "flow.parallel([broken])", "flow.within('1h', broken)", "flow.retry(broken, delay = 0)", "flow.defer(broken)"} {
		_, err := rt.RunSource(t.Context(), "main.star", []byte(src), nil)
		if !errors.Is(err, mine) {
			t.Errorf("%s: %v", src, err)
		}
	}
}
