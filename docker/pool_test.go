package docker_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/provider/pool"
)

// A sandbox from the pool is like any other, and was there before it was asked
// for.
func TestPool(t *testing.T) {
	t.Parallel()
	p := newProvider(t, docker.Config{})
	pl := pool.New(p, pool.Options{Ahead: 1})
	defer func() {
		if err := pl.Close(); err != nil {
			t.Error(err)
		}
	}()
	spec := provider.Spec{Memory: 64 << 20, Env: map[string]string{"SECRET": "hunter2"}}
	first := create(t, pl, spec)
	warm := waiting(t, pl, p, 1)
	second := create(t, pl, spec)
	if !slices.Contains(warm, second.Name()) {
		t.Errorf("%s was not started ahead", second.Name())
	}
	for _, sb := range []provider.Sandbox{first, second} {
		if got := run(t, sb, "echo $SECRET"); got != "hunter2\n" {
			t.Errorf("the command got %q", got)
		}
	}
	run(t, first, "echo mine > file")
	if got := run(t, second, "ls"); got != "" {
		t.Errorf("a new sandbox has %q", got)
	}
	for _, name := range waiting(t, pl, p, 1) {
		c, err := engine(t).ContainerInspect(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(c.Config.Env, "SECRET=hunter2") {
			t.Error("what waits has the secret")
		}
	}

	// One that was removed while it waited.
	for _, name := range waiting(t, pl, p, 1) {
		if err := p.Destroy(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if got := run(t, create(t, pl, spec), "echo alive"); got != "alive\n" {
		t.Errorf("got %q", got)
	}

	names := waiting(t, pl, p, 1)
	if err := pl.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if l := left(t, name); len(l) > 0 {
			t.Errorf("left: %v", l)
		}
	}
}

// waiting returns when n running sandboxes wait in the pool: p lists them, and
// the pool does not.
func waiting(t *testing.T, pl, p provider.Provider, n int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		var names []string
		all, err := p.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		shown, err := pl.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range all {
			mine := i.Owner == provider.Self() && i.State == provider.StateRunning
			if mine && !slices.ContainsFunc(shown, func(s provider.Info) bool { return s.Name == i.Name }) {
				names = append(names, i.Name)
			}
		}
		if len(names) == n {
			return names
		}
		time.Sleep(10 * time.Millisecond)
	}
}
