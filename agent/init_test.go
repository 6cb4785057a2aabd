//go:build linux

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/provider"
)

// dial opens a stream to the agent's socket, without a relay.
func (b *sandbox) dial(context.Context) (io.ReadWriteCloser, error) {
	return net.Dial("unix", b.socket)
}

func (b *sandbox) exitCode() int {
	b.t.Helper()
	select {
	case <-b.exited:
		return b.cmd.ProcessState.ExitCode()
	case <-time.After(20 * time.Second):
		b.t.Fatal("the agent does not end")
		return 0
	}
}

func (b *sandbox) running() bool {
	select {
	case <-b.exited:
		return false
	default:
		return true
	}
}

func TestTerminate(t *testing.T) {
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		b, s := newSession(t)
		word := fmt.Sprint("term", os.Getpid(), time.Now().UnixNano())
		mustStart(t, s, provider.Command{Shell: "trap '' TERM; (setsid sh -c 'while :; do sleep 1; done; : " + word + "' &); while :; do sleep 1; done; : " + word})
		waitFor(t, func() bool { return len(survivors(t, word)) >= 2 })
		b.cmd.Process.Signal(sig)
		if code := b.exitCode(); code != agent.ExitTerminated {
			t.Errorf("%v: exit code %d", sig, code)
		}
		if left := survivors(t, word); len(left) > 0 {
			t.Errorf("%v: survivors: %q", sig, left)
		}
	}
}

func TestTerminateAsPID1(t *testing.T) {
	b, s := newPID1(t)
	word := fmt.Sprint("term", os.Getpid(), time.Now().UnixNano())
	mustStart(t, s, provider.Command{Shell: "trap '' TERM; while :; do sleep 1; done; : " + word})
	b.cmd.Process.Signal(syscall.SIGTERM)
	if code := b.exitCode(); code != agent.ExitTerminated {
		t.Errorf("exit code %d", code)
	}
	waitFor(t, func() bool { return len(survivors(t, word)) == 0 })
}

func TestOwnerLost(t *testing.T) {
	t.Run("never came", func(t *testing.T) {
		b := newSandbox(t, "--grace", "100ms")
		if code := b.exitCode(); code != agent.ExitOwnerLost {
			t.Errorf("exit code %d", code)
		}
	})
	t.Run("gone", func(t *testing.T) {
		b, s := newSession(t, "--grace", "300ms")
		time.Sleep(600 * time.Millisecond)
		if err := s.Ping(ctx); err != nil {
			t.Fatalf("with a session: %v", err)
		}
		// Another one comes within the grace time.
		other := b.session(agent.SessionConfig{Dial: b.dial})
		s.Close()
		if err := other.Ping(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(600 * time.Millisecond)
		if !b.running() {
			t.Fatal("ended under another session")
		}
		mustStart(t, other, provider.Command{Shell: "sleep 1000"})
		other.Close()
		if code := b.exitCode(); code != agent.ExitOwnerLost {
			t.Errorf("exit code %d", code)
		}
	})
	t.Run("kept", func(t *testing.T) {
		b, s := newSession(t, "--grace", "50ms", "--keep")
		s.Close()
		time.Sleep(300 * time.Millisecond)
		if !b.running() {
			t.Fatal("it ended")
		}
		if err := b.session(agent.SessionConfig{Dial: b.dial}).Ping(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Run("silent client", func(t *testing.T) {
		b := newSandbox(t, "--grace", "300ms")
		c, err := b.dialSoon()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() // it never greets, so it is no session
		if code := b.exitCode(); code != agent.ExitOwnerLost {
			t.Errorf("exit code %d", code)
		}
	})
}

// dialSoon is dial for an agent that may not listen yet.
func (b *sandbox) dialSoon() (c io.ReadWriteCloser, err error) {
	waitFor(b.t, func() bool {
		c, err = b.dial(ctx)
		return err == nil
	})
	return c, err
}

func TestExpires(t *testing.T) {
	args := agent.InitArgs(agent.InitOptions{Expires: time.Now().Add(1500 * time.Millisecond), Grace: 10 * time.Millisecond})
	b, s := newSession(t, args[3:]...)
	s.Close() // until then it needs no owner
	other := b.session(agent.SessionConfig{Dial: b.dial})
	time.Sleep(200 * time.Millisecond)
	if err := other.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	if code := b.exitCode(); code != agent.ExitExpired {
		t.Errorf("exit code %d", code)
	}
}

func TestInitArgs(t *testing.T) {
	got := strings.Join(agent.InitArgs(agent.InitOptions{Grace: time.Minute, Keep: true, Expires: time.UnixMilli(1234)}), " ")
	if want := "/opt/capyrun/capyrun agent init --grace 1m0s --keep --expires 1234"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := strings.Join(agent.InitArgs(agent.InitOptions{}), " "); got != "/opt/capyrun/capyrun agent init" {
		t.Errorf("got %q", got)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	b := newSandbox(t, "--client-uid", "54321")
	s := b.session(agent.SessionConfig{Dial: func(context.Context) (io.ReadWriteCloser, error) { return b.dialSoon() }})
	if err := s.Ping(ctx); !errors.Is(err, provider.ErrSessionLost) {
		t.Errorf("got %v", err)
	}
}

// TestImpostor: a relay does not speak with a process that is not the first.
func TestImpostor(t *testing.T) {
	name := fmt.Sprintf("@capyrun-impostor-%d", os.Getpid())
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(self, "agent", "connect", "--socket", name).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "answers instead of the agent") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestConfinementAsPID1(t *testing.T) {
	_, s := newPID1(t)
	for what, script := range map[string]string{
		"environment": "cat /proc/1/environ",
		"memory":      "head -c 1 /proc/1/mem",
		"descriptors": "ls /proc/1/fd/",
		"output":      "echo x > /proc/1/fd/1",
		"tracing":     "cat /proc/1/syscall",
	} {
		if r := mustExec(t, s, provider.Command{Shell: script}); os.Getuid() == 0 && (r.ExitCode == 0 || len(r.Stdout) > 0) {
			t.Errorf("%s: %+v", what, r)
		}
	}
	r := mustExec(t, s, provider.Command{Shell: "ls /proc/self/fd | wc -l; cat /proc/self/oom_score_adj; cat /proc/1/oom_score_adj"})
	f := strings.Fields(string(r.Stdout))
	if len(f) != 3 || f[0] != "4" || f[1] == f[2] { // 0, 1, 2 and the directory itself
		t.Errorf("descriptors, scores of a command and of the agent: %q", f)
	}
	// What it may send does not end the agent, and commands heed it as usual.
	mustExec(t, s, provider.Command{Shell: "for s in HUP QUIT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM XCPU SYS STOP TSTP KILL; do kill -$s 1; done"})
	for _, sig := range []string{"HUP", "PIPE", "USR1", "ABRT"} {
		if r := mustExec(t, s, provider.Command{Shell: "kill -" + sig + " $$; exit 1"}); r.Signal != "SIG"+sig {
			t.Errorf("%s: %+v", sig, r)
		}
	}
	// Adopted zombies are reaped, and do not confuse exit codes.
	for i := range 20 {
		r := mustExec(t, s, provider.Command{Shell: fmt.Sprintf("(setsid sh -c 'sleep 0.01; exit 3' &) ; (exit 9) & exit %d", i)})
		if r.ExitCode != i {
			t.Errorf("exit code %d, want %d", r.ExitCode, i)
		}
	}
	waitFor(t, func() bool {
		r := mustExec(t, s, provider.Command{Shell: "for p in /proc/[0-9]*; do while read -r k v; do case $k$v in State:Z*) echo $p;; esac; done < $p/status; done 2>/dev/null"})
		return len(r.Stdout) == 0
	})
}

func TestStats(t *testing.T) {
	_, s := newSession(t)
	st, err := s.Stats(ctx)
	if err != nil || st.CPUTime <= 0 || st.CPUPercent < 0 {
		t.Errorf("got %+v, %v", st, err)
	}
}

// TestIdleAgentIsSmall measures what an agent holds at rest.
func TestIdleAgentIsSmall(t *testing.T) {
	b, s := newSession(t)
	mustExec(t, s, provider.Command{Shell: "head -c 100000000 /dev/zero"})
	if err := s.WriteFile(ctx, "f", io.LimitReader(zeros{}, 50<<20), provider.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	status := func(name string) string {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(line, name+":") {
				return line
			}
		}
		return ""
	}
	t.Logf("%s %s %s", status("VmRSS"), status("RssAnon"), status("Threads"))
}
