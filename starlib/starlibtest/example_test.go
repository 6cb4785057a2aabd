package starlibtest_test

import (
	"context"
	"fmt"

	"github.com/capybara-hq/capyrun/starlib"
	"github.com/capybara-hq/capyrun/starlib/starlibtest"
)

// A test of a workflow says what the commands do.
func Example() {
	fake := starlibtest.New()
	defer fake.Close()
	fake.Handle("make *", func(_ context.Context, c *starlibtest.Call) int {
		fmt.Fprintln(c.Stdout, "made", c.Args[1], "in", c.Sandbox.Spec().Image)
		return 0
	})
	res, err := starlib.New(fake, starlib.Options{}).RunSource(context.Background(), "build.star", []byte(`
def main():
    return sandbox.create(image = "gcc:14").exec("make all").stdout
`), nil)
	fmt.Printf("%q %v, %d created, %d left\n", res.Value, err, len(fake.Created()), len(fake.Names()))
	// Output: "made all in gcc:14\n" <nil>, 1 created, 0 left
}
