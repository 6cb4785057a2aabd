package docker_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
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

// A hundred megabytes arrive in a command and come back as they were.
func TestFaultHundredMegabytes(t *testing.T) {
	t.Parallel()
	const size = 100_000_000
	sb := create(t, newProvider(t, docker.Config{}), small(""))
	var sent, got hash.Hash = sha256.New(), sha256.New()
	n := 0
	input := io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{}), size), sent)
	r, err := sb.Exec(t.Context(), provider.Command{Args: []string{"cat"}, Stdin: input, Timeout: 5 * time.Minute,
		OnOutput: func(_ provider.Stream, b []byte) { got.Write(b); n += len(b) }})
	if err != nil || !r.OK() || n != size || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Errorf("%d of %d bytes, %+v, %v", n, size, r, err)
	}
}

// Orphans end by the thousand while commands are waited for.
func TestFaultZombies(t *testing.T) {
	t.Parallel()
	sb := create(t, newProvider(t, docker.Config{}), provider.Spec{Memory: 128 << 20})
	done := make(chan struct{})
	go func() {
		defer close(done)
		r, err := sb.Exec(t.Context(), provider.Command{Timeout: 5 * time.Minute,
			Shell: "i=0; while [ $i -lt 2000 ]; do (true &); i=$((i+1)); done; exit 7"})
		if err != nil || r.ExitCode != 7 {
			t.Errorf("%+v, %v", r, err)
		}
	}()
	for n := 0; ; n = (n + 1) % 100 {
		r, err := sb.Exec(t.Context(), provider.Command{Shell: "exit " + strconv.Itoa(n)})
		if err != nil || r.ExitCode != n {
			t.Errorf("exit %d: %+v, %v", n, r, err)
		}
		select {
		case <-done:
			until(t, "an end of the zombies", 2*time.Minute, func() bool {
				return run(t, sb, "grep -ls '^State:.Z' /proc/[0-9]*/status | wc -l | tr -d ' '") == "0\n"
			})
			return
		default:
		}
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
