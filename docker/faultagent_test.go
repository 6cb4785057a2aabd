package docker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/provider"
)

// What fills the memory cannot be ended, since it is files: the kernel may have
// to end the agent. That is told, and the sandbox is there again afterwards.
func TestFaultMemoryFull(t *testing.T) {
	t.Parallel()
	spec := small("")
	sb := create(t, newProvider(t, docker.Config{}), spec)
	run(t, sb, "echo kept > kept")
	// Each command may be ended before it has done its part.
	told := false
	for range 6 {
		r, err := sb.Exec(t.Context(), provider.Command{Shell: "dd if=/dev/zero of=/dev/shm/$$ bs=65536; dd if=/dev/zero of=/tmp/$$ bs=65536", Timeout: 20 * time.Second})
		switch {
		case err == nil && r.TimedOut:
			t.Fatalf("%+v", r)
		case err == nil && r.OutOfMemory, errors.Is(err, provider.ErrSessionLost) && strings.Contains(err.Error(), "out of memory"):
			told = true
		case err != nil && !errors.Is(err, provider.ErrSessionLost): // the engine may know of an end too late to tell why
			t.Errorf("got %v", err)
		}
	}
	if !told {
		t.Error("nobody spoke of memory")
	}
	if err := sb.Suspend(t.Context()); err != nil {
		t.Error(err)
	}
	if got := run(t, sb, "cat kept"); got != "kept\n" {
		t.Errorf("afterwards: %q", got)
	}
}

// The kernel ends the agent for want of memory.
func TestFaultAgentOutOfMemory(t *testing.T) {
	t.Parallel()
	api := engine(t)
	sb := create(t, newProvider(t, docker.Config{}), small(""))
	c, err := api.ContainerInspect(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	p, err := sb.Start(t.Context(), provider.Command{Shell: "read go; dd if=/dev/zero of=/dev/shm/x bs=65536; dd if=/dev/zero of=/tmp/x bs=65536"})
	if err != nil {
		t.Fatal(err)
	}
	// It would take a command first. Files are nobody's memory, so the largest
	// score counts.
	raise := []string{"sh", "-c", fmt.Sprintf("echo 1000 > /proc/%d/oom_score_adj", c.State.Pid)}
	if os.Geteuid() != 0 {
		raise = append([]string{"sudo", "-n"}, raise...)
	}
	if out, err := exec.Command(raise[0], raise[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("the test needs root, or sudo without a password: %s %v", out, err)
	}
	if err := p.Write(t.Context(), []byte("go\n")); err != nil {
		t.Fatal(err)
	}
	r, err := p.Wait(t.Context())
	if !errors.Is(err, provider.ErrSessionLost) || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("got %+v, %v", r, err)
	}
	if got := run(t, sb, "echo alive"); got != "alive\n" {
		t.Errorf("afterwards: %q", got)
	}
}

// /tmp is full: that is the error of whoever writes there, and nothing is left
// of what did not fit.
func TestFaultTempFull(t *testing.T) {
	t.Parallel()
	sb := create(t, newProvider(t, docker.Config{}), small(""))
	err := sb.WriteFile(t.Context(), "/tmp/large", io.LimitReader(endless{}, 100<<20), provider.WriteOptions{})
	if err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("got %v", err)
	}
	if got := run(t, sb, "ls -A /tmp; echo x > /tmp/x; cat /tmp/x"); got != "x\n" {
		t.Errorf("afterwards: %q", got)
	}
}

// A command that stops itself and everything in reach, and does not heed
// signals, ends at its deadline.
func TestFaultStopped(t *testing.T) {
	t.Parallel()
	sb := create(t, newProvider(t, docker.Config{}), small(""))
	begin := time.Now()
	r, err := sb.Exec(t.Context(), provider.Command{Timeout: time.Second,
		Shell: "(trap '' TERM; setsid sleep 100000 &) ; trap '' TERM; kill -STOP -1; kill -STOP $$"})
	if err != nil || !r.TimedOut {
		t.Errorf("%+v, %v", r, err)
	}
	if late := time.Since(begin) - time.Second; late > afterDeadline {
		t.Errorf("it ended %v after its deadline", late)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if got := run(t, sb, "echo alive"); got != "alive\n" {
		t.Errorf("afterwards: %q", got)
	}
	if list, err := sb.Processes(ctx); err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
}
