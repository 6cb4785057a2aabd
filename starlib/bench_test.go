package starlib_test

import (
	"fmt"
	"testing"

	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/starlib"
	"github.com/capybara-hq/capyrun/starlib/starlibtest"
)

// BenchmarkBuiltin is what a builtin costs above the provider's call: the
// difference between a script's call and the same call in Go. The limit to hold
// is 10 us.
func BenchmarkBuiltin(b *testing.B) {
	fake := starlibtest.New()
	defer fake.Close()
	sb, err := fake.Create(b.Context(), provider.Spec{Name: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("go exec", func(b *testing.B) {
		for b.Loop() {
			if _, err := sb.Exec(b.Context(), provider.Command{Shell: "true"}); err != nil {
				b.Fatal(err)
			}
		}
	})
	sink := event.Func(func(event.Event) {})
	for name, options := range map[string]starlib.Options{"exec": {}, "exec with events": {Events: sink}} {
		b.Run(name, func(b *testing.B) {
			runCall(b, starlib.New(fake, options), "sb.exec('true')")
		})
	}
	for name, call := range map[string]string{
		"status": "sb.status", "attempt": "flow.attempt(len, [])", "re.match": "re.match('^a+$', 'aaa')", "parallel": "flow.parallel([len] * 0)",
		"map of 10": "flow.map(len, ['x'] * 10)", "assert.eq": "assert.eq(1, 1)", "str": "str(1)",
	} {
		b.Run(name, func(b *testing.B) {
			runCall(b, starlib.New(fake, starlib.Options{}), call)
		})
	}
}

// runCall runs a call b.N times within one run.
func runCall(b *testing.B, rt *starlib.Runtime, call string) {
	src := fmt.Sprintf("sb = sandbox.open('bench')\ndef main(n):\n    for i in range(n):\n        %s\n", call)
	if _, err := rt.RunSource(b.Context(), "bench.star", []byte(src), starlib.Params{"n": starlark.MakeInt(b.N)}); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkRun is a whole run of an empty workflow.
func BenchmarkRun(b *testing.B) {
	rt := starlib.New(nil, starlib.Options{})
	for b.Loop() {
		if _, err := rt.RunSource(b.Context(), "empty.star", []byte("def main(): pass"), nil); err != nil {
			b.Fatal(err)
		}
	}
}
