package starlib_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing/fstest"
	"time"

	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/starlib"
	"github.com/capybara-hq/capyrun/starlib/script"
	"github.com/capybara-hq/capyrun/starlib/starlibtest"
)

// The examples use the provider for tests; docker.New makes the real one.

func Example() {
	fake := starlibtest.New()
	defer fake.Close()
	rt := starlib.New(fake, starlib.Options{})
	res, err := rt.RunSource(context.Background(), "greet.star", []byte(`
def main(name = "world"):
    sb = sandbox.create()
    return {"greeting": sb.exec(["echo", "hello", name]).stdout.strip()}
`), starlib.Params{"name": "capybara"})
	fmt.Println(res.Value, err)
	// Output: map[greeting:hello capybara] <nil>
}

// A file system that is compiled in, with //go:embed for instance, holds the
// workflow and what it loads.
func ExampleRuntime_RunFile() {
	files := fstest.MapFS{
		"main.star":    {Data: []byte("load('lib/add.star', 'add')\ndef main(): return add(1, 2)")},
		"lib/add.star": {Data: []byte("def add(x, y): return x + y")},
	}
	res, err := starlib.New(nil, starlib.Options{FS: files}).RunFile(context.Background(), "main.star", nil)
	fmt.Println(res.Value, err)
	// Output: 3 <nil>
}

// Cancelling stops the script and its commands; the cleanup takes place.
func ExampleRuntime_RunSource_cancellation() {
	fake := starlibtest.New()
	defer fake.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := starlib.New(fake, starlib.Options{}).RunSource(ctx, "long.star", []byte(`sandbox.create().exec("sleep 3600")`), nil)
	var e *starlib.Error
	if errors.As(err, &e) {
		fmt.Println(e.Kind, errors.Is(err, context.DeadlineExceeded), fake.Names())
	}
	// Output: timed out true []
}

// Parameters given as text become what main expects.
func ExampleParseParams() {
	params, err := starlib.ParseParams([]string{"jobs=4", `tags=["a", "b"]`})
	if err != nil {
		fmt.Println(err)
		return
	}
	res, err := starlib.New(nil, starlib.Options{}).RunSource(context.Background(), "main.star", []byte(`
def main(jobs = 1, tags = []):
    return jobs * len(tags)
`), params)
	fmt.Println(res.Value, err)
	// Output: 8 <nil>
}

// A builtin of the embedding program. It gets the context of the run, so that it
// ends with it.
func ExampleOptions_builtins() {
	deploy := script.Builtin("deploy", func(t *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
		var to string
		if err := script.Unpack(args, kwargs, "to", &to); err != nil {
			return nil, err
		}
		return starlark.String("deployed to " + to), t.Ctx.Err()
	})
	rt := starlib.New(nil, starlib.Options{Builtins: starlark.StringDict{"deploy": deploy}})
	res, err := rt.RunSource(context.Background(), "main.star", []byte(`def main(): return deploy(to = "staging")`), nil)
	fmt.Println(res.Value, err)
	// Output: deployed to staging <nil>
}

// Events tell what happens while it happens.
func ExampleOptions_events() {
	fake := starlibtest.New()
	defer fake.Close()
	sink := event.Func(func(e event.Event) {
		switch e.Type {
		case event.Start:
			fmt.Println("start", e.Kind, e.Name)
		case event.Output:
			fmt.Printf("%s %q\n", e.Stream, e.Text)
		}
	})
	_, err := starlib.New(fake, starlib.Options{Events: sink}).RunSource(context.Background(), "main.star", []byte(`
sb = sandbox.create(name = "demo")
flow.step("greet", lambda: sb.exec("echo hello"))
`), nil)
	fmt.Println(err)
	// Output:
	// start run main.star
	// start create create default image
	// start step greet
	// start exec echo hello
	// stdout "hello\n"
	// start cleanup cleanup
	// start sandbox destroy
	// <nil>
}

// Errors come with the places that lead to them.
func ExampleError_Render() {
	_, err := starlib.New(nil, starlib.Options{}).RunSource(context.Background(), "sum.star", []byte(`
def total(xs):
    return xs[0] + xs[1]

def main():
    return total([1, "2"])
`), nil)
	var e *starlib.Error
	if errors.As(err, &e) {
		e.Render(os.Stdout, false)
	}
	// Output:
	// sum.star:6:17: in main
	//     return total([1, "2"])
	//                 ^
	// sum.star:3:18: in total
	//     return xs[0] + xs[1]
	//                  ^
	// error: unknown binary op: int + string
}

// Describe reads what a workflow takes without running it.
func ExampleRuntime_Describe() {
	files := fstest.MapFS{"main.star": {Data: []byte(`
def main(ref, jobs = 2):
    """Builds.

    Args:
        ref: what to build
        jobs: how many at once
    """
`)}}
	doc, err := starlib.New(nil, starlib.Options{FS: files}).Describe("main.star")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(doc.Main)
	for _, p := range doc.Params {
		fmt.Printf("%s %s %t %s\n", p.Name, p.Type, p.Required, p.Help)
	}
	// Output:
	// Builds.
	// ref  true what to build
	// jobs int false how many at once
}
