package providertest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/provider"
)

func start(t testing.TB, sb provider.Sandbox, cmd provider.Command) provider.Process {
	t.Helper()
	proc, err := sb.Start(t.Context(), cmd)
	if err != nil {
		t.Fatalf("start %s: %v", cmd.String(), err)
	}
	return proc
}

func testProcess(t *testing.T, h Harness) {
	ctx := t.Context()
	p := h.New(t)
	sb := create(t, p, provider.Spec{Image: h.Image})

	t.Run("wait", func(t *testing.T) {
		proc := start(t, sb, provider.Command{Shell: "echo out; echo err >&2; exit 5"})
		if proc.ID() == "" || proc.PID() <= 1 {
			t.Errorf("id %q, pid %d", proc.ID(), proc.PID())
		}
		for range 2 { // a second wait has the same answer
			r, err := proc.Wait(ctx)
			if err != nil || r.ExitCode != 5 || string(r.Stdout) != "out\n" || string(r.Stderr) != "err\n" {
				t.Errorf("%+v, %v", r, err)
			}
		}
		if info, err := proc.Info(ctx); err != nil || info.Running || info.ExitCode != 5 {
			t.Errorf("%+v, %v", info, err)
		}
	})

	t.Run("not started", func(t *testing.T) {
		_, err := sb.Start(ctx, provider.Command{Args: []string{"no-such-program"}})
		wantIs(t, err, provider.ErrNotStarted)
	})

	t.Run("input and output", func(t *testing.T) {
		proc := start(t, sb, provider.Command{Shell: "while read x; do echo got $x; done; echo end"})
		if err := proc.Write(ctx, []byte("one\n")); err != nil {
			t.Fatal(err)
		}
		wait(t, "an answer", func() bool {
			out, err := proc.Output(ctx)
			return err == nil && string(out.Stdout) == "got one\n"
		})
		if err := proc.Write(ctx, []byte("two\n")); err != nil {
			t.Fatal(err)
		}
		if err := proc.CloseStdin(ctx); err != nil {
			t.Fatal(err)
		}
		r, err := proc.Wait(ctx)
		if err != nil || string(r.Stdout) != "got one\ngot two\nend\n" {
			t.Errorf("%+v, %v", r, err)
		}
		if err := proc.Write(ctx, []byte("three\n")); err == nil {
			t.Error("an ended process takes input")
		}
	})

	t.Run("given input", func(t *testing.T) {
		proc := start(t, sb, provider.Command{Shell: "cat", Stdin: strings.NewReader("given")})
		r, err := proc.Wait(ctx)
		if err != nil || string(r.Stdout) != "given" {
			t.Errorf("%+v, %v", r, err)
		}
	})

	t.Run("newest output is kept", func(t *testing.T) {
		proc := start(t, sb, provider.Command{Shell: "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done", MaxOutput: 100})
		r, err := proc.Wait(ctx)
		if err != nil || !r.Truncated || len(r.Stdout) > 100 || !strings.HasSuffix(string(r.Stdout), "line 1999\n") {
			t.Errorf("%+v, %v", r, err)
		}
	})

	t.Run("signals", func(t *testing.T) {
		proc := start(t, sb, provider.Command{Shell: "trap 'echo usr1; exit 9' USR1; echo ready; while :; do sleep 0.01; done"})
		wait(t, "the trap", func() bool {
			out, err := proc.Output(ctx)
			return err == nil && strings.Contains(string(out.Stdout), "ready")
		})
		wantInvalid(t, proc.Signal(ctx, "NOSUCH"), "signal")
		if err := proc.Signal(ctx, "USR1"); err != nil {
			t.Fatal(err)
		}
		if r, err := proc.Wait(ctx); err != nil || r.ExitCode != 9 || string(r.Stdout) != "ready\nusr1\n" {
			t.Errorf("%+v, %v", r, err)
		}
		wantIs(t, proc.Signal(ctx, "TERM"), provider.ErrGone)

		proc = start(t, sb, provider.Command{Shell: "(setsid sleep 4751 &); sleep 4751"})
		wait(t, "the children", func() bool { return alive(t, sb, "sleep 4751") >= 2 })
		if err := proc.Signal(ctx, "SIGKILL"); err != nil {
			t.Fatal(err)
		}
		if n := alive(t, sb, "sleep 4751"); n != 0 {
			t.Errorf("%d are left", n)
		}
		if r, err := proc.Wait(ctx); err != nil || r.Signal != "SIGKILL" {
			t.Errorf("%+v, %v", r, err)
		}
	})

	t.Run("followed", func(t *testing.T) {
		// The process waits for what the follower does, so this ends only if output
		// arrives while it runs.
		proc := start(t, sb, provider.Command{Shell: "echo one; while read x; do echo got $x; echo err $x >&2; done; exit 6"})
		wait(t, "some output", func() bool {
			out, err := proc.Output(ctx)
			return err == nil && len(out.Stdout) > 0
		})
		for range 2 { // the second time it has ended
			var stdout, stderr bytes.Buffer
			r, err := proc.Follow(ctx, func(s provider.Stream, data []byte) {
				if s == provider.Stderr {
					stderr.Write(data)
					return
				}
				if stdout.Len() == 0 {
					// Fails the second time, when nobody reads any more.
					proc.Write(ctx, []byte("two\n"))
					proc.CloseStdin(ctx)
				}
				stdout.Write(data)
			})
			if err != nil || r.ExitCode != 6 || r.Truncated || stdout.String() != "one\ngot two\n" || stderr.String() != "err two\n" {
				t.Errorf("%+v, %v, followed %q and %q", r, err, stdout.String(), stderr.String())
			}
		}
	})

	t.Run("a slow follower does not slow it", func(t *testing.T) {
		proc := start(t, sb, provider.Command{Shell: "echo first; read x; yes 0123456789 | head -c 3000000; echo; echo last", MaxOutput: 64 << 10})
		total, tail := 0, ""
		once := false
		r, err := proc.Follow(ctx, func(_ provider.Stream, data []byte) {
			if !once {
				once = true
				if err := proc.Write(ctx, []byte("go\n")); err != nil {
					t.Error(err)
				}
				// It runs to its end while this stands still.
				wait(t, "the end", func() bool {
					info, err := proc.Info(ctx)
					return err == nil && !info.Running
				})
			}
			total += len(data)
			tail = string(append([]byte(tail), data...))
			tail = tail[max(0, len(tail)-100):]
		})
		if err != nil || !r.OK() || !r.Truncated || total > 2000000 || !strings.HasSuffix(tail, "\nlast\n") {
			t.Errorf("%+v, %v, followed %d bytes, at the end %q", r, err, total, tail)
		}
	})

	t.Run("a cancelled follow leaves it", func(t *testing.T) {
		proc := start(t, sb, provider.Command{Shell: "echo ready; sleep 4754"})
		cause := errors.New("seen enough")
		fctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		r, err := proc.Follow(fctx, func(provider.Stream, []byte) { cancel(cause) })
		if r != nil {
			t.Errorf("%+v", r)
		}
		wantIs(t, err, cause)
		if info, err := proc.Info(ctx); err != nil || !info.Running {
			t.Errorf("%+v, %v", info, err)
		}
	})

	t.Run("timeout", func(t *testing.T) {
		proc := start(t, sb, provider.Command{Shell: "sleep 4752", Timeout: 100 * time.Millisecond})
		r, err := proc.Wait(ctx)
		if err != nil || !r.TimedOut {
			t.Errorf("%+v, %v", r, err)
		}
	})

	t.Run("a cancelled wait leaves it", func(t *testing.T) {
		proc := start(t, sb, provider.Command{Shell: "sleep 4753"})
		wctx, cancel := context.WithTimeoutCause(ctx, 20*time.Millisecond, errors.New("no patience"))
		defer cancel()
		if _, err := proc.Wait(wctx); err == nil || err.Error() == "" {
			t.Error("the wait ended well")
		}
		if info, err := proc.Info(ctx); err != nil || !info.Running {
			t.Errorf("%+v, %v", info, err)
		}
	})

	t.Run("found by another runner", func(t *testing.T) {
		proc := start(t, sb, provider.Command{Shell: "echo hello; read x; echo $x", Tag: "server"})
		other, err := h.New(t).Open(ctx, sb.Name())
		if err != nil {
			t.Fatal(err)
		}
		list, err := other.Processes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, info := range list {
			if info.ID == proc.ID() {
				found = info.Running && info.Background && info.Tag == "server" && info.PID == proc.PID() && strings.Contains(info.Command, "echo hello")
			}
		}
		if !found {
			t.Errorf("not as it should be in %+v", list)
		}
		for _, key := range []string{proc.ID(), "server"} {
			again, err := other.Process(ctx, key)
			if err != nil {
				t.Fatal(err)
			}
			if again.ID() != proc.ID() {
				t.Errorf("%s found %s", key, again.ID())
			}
		}
		again, err := other.Process(ctx, "server")
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Write(ctx, []byte("world\n")); err != nil {
			t.Fatal(err)
		}
		r, err := proc.Wait(ctx)
		if err != nil || string(r.Stdout) != "hello\nworld\n" {
			t.Errorf("%+v, %v", r, err)
		}
		_, err = other.Process(ctx, "no-such-process")
		wantIs(t, err, provider.ErrGone)
	})
}
