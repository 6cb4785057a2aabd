package docker_test

import (
	"errors"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
)

// Somebody pauses the container behind the session's back.
func TestPaused(t *testing.T) {
	t.Parallel()
	api := engine(t)
	p := newProvider(t, docker.Config{})
	sb := create(t, p, provider.Spec{})
	other, err := newProvider(t, docker.Config{}).Open(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	for who, sb := range map[string]provider.Sandbox{"its session": sb, "a new session": other} {
		if err := api.ContainerPause(t.Context(), sb.Name()); err != nil {
			t.Fatal(err)
		}
		if info, err := sb.Info(t.Context()); err != nil || info.State != provider.StatePaused {
			t.Errorf("%+v, %v", info, err)
		}
		if got := run(t, sb, "echo resumed"); got != "resumed\n" {
			t.Errorf("%s: got %q", who, got)
		}
	}
	if err := api.ContainerPause(t.Context(), sb.Name()); err != nil {
		t.Fatal(err)
	}
	if err := sb.Resume(t.Context()); err != nil {
		t.Error(err)
	}
	if err := api.ContainerPause(t.Context(), sb.Name()); err != nil {
		t.Fatal(err)
	}
	if err := sb.Suspend(t.Context()); err != nil {
		t.Error(err)
	}
	if got := run(t, sb, "echo resumed"); got != "resumed\n" {
		t.Errorf("after a suspend: %q", got)
	}
	if err := api.ContainerPause(t.Context(), sb.Name()); err != nil {
		t.Fatal(err)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Errorf("destroy a paused one: %v", err)
	}
	if l := left(t, sb.Name()); len(l) > 0 {
		t.Errorf("left: %v", l)
	}
}

// What ends a sandbox in the middle of a command is told.
func TestFaultSessionLost(t *testing.T) {
	t.Parallel()
	api := engine(t)
	for name, c := range map[string]struct {
		end  func(id string) error
		says string // a regular expression
	}{
		"killed":    {func(id string) error { return api.ContainerKill(t.Context(), id, "KILL") }, "killed"},
		"stopped":   {func(id string) error { return api.ContainerStop(t.Context(), id, container.StopOptions{}) }, "suspended"},
		"restarted": {func(id string) error { return api.ContainerRestart(t.Context(), id, container.StopOptions{}) }, ""},
		"removed": {func(id string) error {
			return api.ContainerRemove(t.Context(), id, container.RemoveOptions{Force: true})
		}, "destroyed|killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sb := create(t, newProvider(t, docker.Config{}), provider.Spec{})
			var once sync.Once
			begin := time.Now()
			_, err := sb.Exec(t.Context(), provider.Command{Shell: "echo; sleep 1000", OnOutput: func(provider.Stream, []byte) {
				once.Do(func() {
					go func() {
						if err := c.end(sb.Name()); err != nil {
							t.Error(err)
						}
					}()
				})
			}})
			if !errors.Is(err, provider.ErrSessionLost) || !regexp.MustCompile(c.says).MatchString(err.Error()) {
				t.Errorf("got %v", err)
			}
			if took := time.Since(begin); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
			if name == "removed" {
				_, err := sb.Exec(t.Context(), provider.Command{Shell: "true"})
				if !errors.Is(err, provider.ErrGone) {
					t.Errorf("afterwards: %v", err)
				}
				return
			}
			if got := run(t, sb, "echo alive"); got != "alive\n" {
				t.Errorf("afterwards: %q", got)
			}
		})
	}
}

// An agent that does not answer is not waited for longer than its patience:
// the container is restarted, and a warning says that.
func TestFaultAgentStopped(t *testing.T) {
	t.Parallel()
	api := engine(t)
	sb := create(t, newProvider(t, docker.Config{}), provider.Spec{})
	c, err := api.ContainerInspect(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var warnings []string
	ctx := event.NewContext(t.Context(), event.Func(func(e event.Event) {
		if e.Type == event.Log && e.Level == event.Warning {
			mu.Lock()
			defer mu.Unlock()
			warnings = append(warnings, e.Text)
		}
	}))
	var once sync.Once
	begin := time.Now()
	r, err := sb.Exec(ctx, provider.Command{Shell: "echo partial; sleep 1000", Timeout: time.Second, OnOutput: func(provider.Stream, []byte) {
		once.Do(func() {
			if err := syscall.Kill(c.State.Pid, syscall.SIGSTOP); err != nil {
				t.Error(err)
			}
		})
	}})
	if err != nil || !r.TimedOut || string(r.Stdout) != "partial\n" {
		t.Errorf("%+v, %v", r, err)
	}
	if took := time.Since(begin); took < 15*time.Second || took > 60*time.Second {
		t.Errorf("it took %v", took)
	}
	mu.Lock()
	if len(warnings) != 1 || !strings.Contains(warnings[0], "other commands") {
		t.Errorf("warnings: %q", warnings)
	}
	mu.Unlock()
	if got := run(t, sb, "echo alive"); got != "alive\n" {
		t.Errorf("afterwards: %q", got)
	}
}
