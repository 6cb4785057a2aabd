package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/starlib"
	"github.com/capybara-hq/capyrun/starlib/starlibtest"
)

func (b *bench) starlarkRows() []row {
	return []row{
		{"Starlark's cost of one `sb.exec` above the Go call", b.builtin},
		{"`capyrun run` of an empty workflow, whole process", b.coldStart},
	}
}

// builtin compares calls of a provider that does nothing.
func (b *bench) builtin() (string, error) {
	fake := starlibtest.New()
	defer fake.Close()
	sb, err := fake.Create(b.ctx, provider.Spec{Name: "bench"})
	if err != nil {
		return "", err
	}
	const calls = 2000
	rt := starlib.New(fake, starlib.Options{})
	script := func(int) error {
		_, err := rt.RunSource(b.ctx, "bench.star", []byte(`
def main(n):
    sb = sandbox.open("bench")
    for _ in range(n):
        sb.exec("true")
`), starlib.Params{"n": starlark.MakeInt(calls)})
		return err
	}
	goCalls := func(int) error {
		for range calls {
			if _, err := sb.Exec(b.ctx, provider.Command{Shell: "true"}); err != nil {
				return err
			}
		}
		return nil
	}
	// The run around the calls is in the figure, too: a fraction of a microsecond
	// for each.
	inScript, inGo, err := b.inTurn(pair{rounds: b.rounds, block: 2, ours: script, theirs: goCalls})
	if err != nil {
		return "", err
	}
	const target = 10 * time.Microsecond
	cost := (inScript - inGo) / calls
	return alone(fmt.Sprintf("%.2f us", float64(cost.Nanoseconds())/1e3), "10 us", cost < target), nil
}

func (b *bench) coldStart() (string, error) {
	f, err := os.CreateTemp("", "empty-*.star")
	if err != nil {
		return "", err
	}
	f.Close()
	defer os.Remove(f.Name())
	all, err := b.sample(b.rounds, func(int) error {
		out, err := exec.Command(b.binary, "run", f.Name()).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	const target = 30 * time.Millisecond
	p50 := median(all)
	return alone(fmt.Sprintf("%.1f ms", ms(p50)), "30 ms", p50 < target), nil
}
