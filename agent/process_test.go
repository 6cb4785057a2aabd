//go:build linux

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/provider"
)

func mustStart(t testing.TB, s *agent.Session, cmd provider.Command) provider.Process {
	t.Helper()
	p, err := s.Start(ctx, cmd)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestBackgroundProcess(t *testing.T) {
	b, s := newSession(t)
	p := mustStart(t, s, provider.Command{Shell: "echo begun; cat; echo end >&2; exit 7", Tag: "svc"})
	info, err := p.Info(ctx)
	if err != nil || !info.Running || info.ID != p.ID() || info.PID != p.PID() || !info.Background || info.Tag != "svc" || info.ExitCode != -1 || !strings.HasPrefix(info.Command, "echo begun;") {
		t.Errorf("Info: %+v, %v", info, err)
	}
	if time.Since(info.Started) > time.Minute {
		t.Errorf("started %v", info.Started)
	}
	if err := p.Write(ctx, []byte("input\n")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		out, err := p.Output(ctx)
		return err == nil && string(out.Stdout) == "begun\ninput\n"
	})

	// It outlives the session and is found again by another, by id and by tag.
	s.Close()
	other := b.session(agent.SessionConfig{})
	for _, key := range []string{p.ID(), "svc"} {
		q, err := other.Process(ctx, key)
		if err != nil || q.ID() != p.ID() || q.PID() != p.PID() {
			t.Fatalf("Process(%q): %v, %v", key, q, err)
		}
		p = q
	}
	if err := p.CloseStdin(ctx); err != nil {
		t.Fatal(err)
	}
	r, err := p.Wait(ctx)
	if err != nil || string(r.Stdout) != "begun\ninput\n" || string(r.Stderr) != "end\n" || r.ExitCode != 7 || r.Truncated {
		t.Errorf("Wait: %+v, %v", r, err)
	}
	if r, err := p.Wait(ctx); err != nil || r.ExitCode != 7 {
		t.Errorf("Wait again: %+v, %v", r, err)
	}
	if info, err := p.Info(ctx); err != nil || info.Running || info.ExitCode != 7 {
		t.Errorf("Info: %+v, %v", info, err)
	}
	list, err := other.Processes(ctx)
	if err != nil || len(list) != 1 || list[0].ID != p.ID() {
		t.Errorf("Processes: %+v, %v", list, err)
	}
	for what, err := range map[string]error{
		"write":  p.Write(ctx, []byte("x")),
		"signal": p.Signal(ctx, "TERM"),
	} {
		if !errors.Is(err, provider.ErrGone) {
			t.Errorf("%s after the end: %v", what, err)
		}
	}
	if err := errors.Join(p.CloseStdin(ctx), p.Signal(ctx, "KILL")); err != nil {
		t.Errorf("after the end: %v", err)
	}
	if _, err := other.Process(ctx, "nobody"); !errors.Is(err, provider.ErrGone) {
		t.Errorf("Process: %v", err)
	}
}

func TestBackgroundSignals(t *testing.T) {
	_, s := newSession(t)
	for _, tt := range []struct{ send, want string }{
		{"TERM", "SIGTERM"}, {"SIGINT", "SIGINT"}, {"1", "SIGHUP"}, {"usr1", "SIGUSR1"}, {"KILL", "SIGKILL"}, {"9", "SIGKILL"},
	} {
		p := mustStart(t, s, provider.Command{Args: []string{"sleep", "1000"}})
		if err := p.Signal(ctx, tt.send); err != nil {
			t.Errorf("%s: %v", tt.send, err)
		}
		if r, err := p.Wait(ctx); err != nil || r.Signal != tt.want || r.ExitCode != -1 {
			t.Errorf("%s: %+v, %v", tt.send, r, err)
		}
	}
	p := mustStart(t, s, provider.Command{Args: []string{"sleep", "1000"}})
	for _, bad := range []string{"", "NOPE", "0", "-1", "65", "9x"} {
		if err := p.Signal(ctx, bad); !errors.Is(err, provider.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestBackgroundOutputKeepsNewest(t *testing.T) {
	_, s := newSession(t)
	p := mustStart(t, s, provider.Command{Shell: "for i in 1 2 3 4 5 6 7 8 9; do echo out$i; done; printf €€", MaxOutput: 20})
	r, err := p.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if want := "ut7\nout8\nout9\n€€"; !r.Truncated || string(r.Stdout) != want {
		t.Errorf("got %q, want %q", r.Stdout, want)
	}
}

// TestFollowOrder: a follower that comes late still gets both streams in the
// order in which they were printed.
func TestFollowOrder(t *testing.T) {
	_, s := newSession(t)
	p := mustStart(t, s, provider.Command{Shell: "for i in 1 2 3 4 5; do echo out$i; sleep 0.01; echo err$i >&2; sleep 0.01; done; exit 3"})
	if _, err := p.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	r, err := p.Follow(ctx, func(_ provider.Stream, data []byte) { got.Write(data) })
	if err != nil || r.ExitCode != 3 || r.Truncated || len(r.Stdout) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if want := "out1\nerr1\nout2\nerr2\nout3\nerr3\nout4\nerr4\nout5\nerr5\n"; got.String() != want {
		t.Errorf("got %q", got.String())
	}
}

// TestFollowEndsWithTheProcess: what a process leaves behind is not followed,
// however much it prints.
func TestFollowEndsWithTheProcess(t *testing.T) {
	_, s := newSession(t)
	p := mustStart(t, s, provider.Command{Shell: "yes & exit 4", MaxOutput: 100 << 10})
	r, err := p.Follow(ctx, func(provider.Stream, []byte) {})
	if err != nil || r.ExitCode != 4 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := p.Signal(ctx, "KILL"); err != nil {
		t.Error(err)
	}
}

func TestBackgroundTimeout(t *testing.T) {
	_, s := newSession(t)
	p := mustStart(t, s, provider.Command{Shell: "setsid sleep 1000 & wait", Timeout: 100 * time.Millisecond})
	r, err := p.Wait(ctx)
	if err != nil || !r.TimedOut || r.Signal != "SIGKILL" {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestBackgroundStdin(t *testing.T) {
	_, s := newSession(t)
	p := mustStart(t, s, provider.Command{Args: []string{"cat"}, Stdin: strings.NewReader(strings.Repeat("x", 200<<10))})
	r, err := p.Wait(ctx)
	if err != nil || len(r.Stdout) != 200<<10 {
		t.Errorf("got %d bytes, %v", len(r.Stdout), err)
	}
}

func TestBackgroundWriteWaits(t *testing.T) {
	_, s := newSession(t)
	p := mustStart(t, s, provider.Command{Args: []string{"sleep", "1000"}})
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if err := p.Write(ctx, make([]byte, 1<<20)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a write that nobody reads: %v", err)
	}
	if _, err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait that was cancelled: %v", err)
	}
	if info, err := p.Info(context.Background()); err != nil || !info.Running {
		t.Errorf("it does not run any more: %+v, %v", info, err)
	}
}

func TestBackgroundNotStarted(t *testing.T) {
	_, s := newSession(t)
	if _, err := s.Start(ctx, provider.Command{Args: []string{"no-such-program"}}); !errors.Is(err, provider.ErrNotStarted) {
		t.Errorf("got %v", err)
	}
	assertNoCommands(t, s)
}

func TestManyEndedProcessesAreForgotten(t *testing.T) {
	_, s := newSession(t)
	keep := mustStart(t, s, provider.Command{Args: []string{"sleep", "1000"}, Tag: "keep"})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 80 {
				p, err := s.Start(ctx, provider.Command{Args: []string{"true"}})
				if err != nil {
					t.Error(err)
					return
				}
				p.Wait(ctx)
			}
		})
	}
	wg.Wait()
	list, err := s.Processes(ctx)
	if err != nil || len(list) > 262 || len(list) < 250 {
		t.Errorf("%d processes, %v", len(list), err)
	}
	if p, err := s.Process(ctx, "keep"); err != nil || p.ID() != keep.ID() {
		t.Errorf("the running one: %v", err)
	}
	ids := map[string]bool{}
	for _, p := range list {
		if ids[p.ID] {
			t.Errorf("id %s twice", p.ID)
		}
		ids[p.ID] = true
	}
}

func TestProcessesShowsCommands(t *testing.T) {
	_, s := newSession(t)
	mustStart(t, s, provider.Command{Args: []string{"sleep", "1000", strings.Repeat("x", 10<<10)}})
	mustStart(t, s, provider.Command{Args: []string{"sh", "-c", "sleep 1000", "a b"}})
	list, err := s.Processes(ctx)
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	if got := list[1].Command; got != "sh -c 'sleep 1000' 'a b'" {
		t.Errorf("command %q", got)
	}
	if n := len(list[0].Command); n > 2000 || !strings.HasPrefix(list[0].Command, "sleep 1000") {
		t.Errorf("command of %d bytes", n)
	}
	if fmt.Sprint(list[0].ID) == list[1].ID {
		t.Error("one id for two")
	}
}
