//go:build linux

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
	"golang.org/x/sys/unix"
)

func TestAgentKilled(t *testing.T) {
	b := newSandbox(t)
	why := errors.New("it was killed, says the engine")
	explained := atomic.Int32{}
	s := b.session(agent.SessionConfig{
		Dial: func(context.Context) (io.ReadWriteCloser, error) { return nil, errors.New("the sandbox is down") },
		Explain: func(_ context.Context, cause error) error {
			explained.Add(1)
			return fmt.Errorf("%w (%w)", why, cause)
		},
	})
	if err := s.Adopt(ctx, b.stream()); err != nil {
		t.Fatal(err)
	}
	p := mustStart(t, s, provider.Command{Shell: "exec sleep 1000"})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			r, err := s.Exec(ctx, provider.Command{Shell: "touch $$.started; exec sleep 1000"})
			if r != nil || !errors.Is(err, provider.ErrSessionLost) || !errors.Is(err, why) {
				t.Errorf("got %v, %v", r, err)
			}
		})
	}
	wg.Go(func() {
		if _, err := p.Wait(ctx); !errors.Is(err, provider.ErrSessionLost) {
			t.Errorf("Wait: %v", err)
		}
	})
	waitFor(t, func() bool {
		started, _ := filepath.Glob(b.path("*.started"))
		return len(started) == 20
	})
	list, err := s.Processes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	lost := s.Lost()
	b.cmd.Process.Kill()
	start := time.Now()
	wg.Wait()
	<-lost
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v to notice", took)
	}
	if n := explained.Load(); n != 1 {
		t.Errorf("explained %d times", n)
	}
	if err := s.Ping(ctx); err == nil || errors.Is(err, provider.ErrSessionLost) || !strings.Contains(err.Error(), "the sandbox is down") {
		t.Errorf("the next operation: %v", err)
	}
	for _, p := range list { // what an agent that is not a namespace's first leaves
		syscall.Kill(-p.PID, syscall.SIGKILL)
	}
}

func TestVanishedClientEndsItsCommands(t *testing.T) {
	b, first := newSession(t)
	s := b.session(agent.SessionConfig{Dial: b.dial})
	word := fmt.Sprint("vanished", os.Getpid(), time.Now().UnixNano())
	done := make(chan error, 1)
	go func() {
		_, err := s.Exec(ctx, provider.Command{Shell: "(setsid sh -c 'while :; do sleep 1; done; : " + word + "' &) ; while :; do sleep 1; done; : " + word})
		done <- err
	}()
	p := mustStart(t, s, provider.Command{Shell: "exec sleep 1000"})
	waitFor(t, func() bool { return len(survivors(t, word)) >= 2 })
	s.Close()
	if err := <-done; !errors.Is(err, provider.ErrSessionLost) {
		t.Errorf("got %v", err)
	}
	waitFor(t, func() bool { return len(survivors(t, word)) == 0 })
	q, err := first.Process(ctx, p.ID())
	if err != nil {
		t.Fatal(err)
	}
	if info, err := q.Info(ctx); err != nil || !info.Running {
		t.Errorf("the background process: %+v, %v", info, err)
	}
	if err := s.Ping(ctx); !errors.Is(err, provider.ErrSessionLost) {
		t.Errorf("after Close: %v", err)
	}
}

func TestReconnect(t *testing.T) {
	b := newSandbox(t)
	var conns []io.Closer
	var mu sync.Mutex
	s := b.session(agent.SessionConfig{Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
		c, err := b.dialSoon()
		mu.Lock()
		conns = append(conns, c)
		mu.Unlock()
		return c, err
	}})
	p := mustStart(t, s, provider.Command{Args: []string{"cat"}})
	for range 5 {
		lost := s.Lost()
		mu.Lock()
		conns[len(conns)-1].Close()
		mu.Unlock()
		<-lost
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if r, err := s.Exec(ctx, provider.Command{Shell: "echo x"}); err != nil || string(r.Stdout) != "x\n" {
					t.Errorf("%v, %v", r, err)
				}
			})
		}
		wg.Wait()
		if err := p.Write(ctx, []byte("x")); err != nil {
			t.Error(err)
		}
	}
	if n := len(conns); n != 6 {
		t.Errorf("%d connections, want 6", n)
	}
	waitFor(t, func() bool {
		out, err := p.Output(ctx)
		return err == nil && string(out.Stdout) == "xxxxx"
	})
}

// TestDialPatience: every caller waits for a dial for as long as it likes, and
// the dial goes on for as long as anybody does.
func TestDialPatience(t *testing.T) {
	b := newSandbox(t)
	release := make(chan struct{})
	cancelled := make(chan struct{}, 10)
	dials := atomic.Int32{}
	s := b.session(agent.SessionConfig{Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
		dials.Add(1)
		select {
		case <-release:
			return b.dialSoon()
		case <-ctx.Done():
			cancelled <- struct{}{}
			return nil, ctx.Err()
		}
	}})
	short, cancel := context.WithCancel(ctx)
	errs := make(chan error, 2)
	go func() { errs <- s.Ping(short) }()
	waitFor(t, func() bool { return dials.Load() == 1 })
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	<-cancelled // nobody waited any more

	short, cancel = context.WithCancel(ctx)
	defer cancel()
	go func() { errs <- s.Ping(short) }()
	waitFor(t, func() bool { return dials.Load() == 2 })
	long := make(chan error, 1)
	go func() { long <- s.Ping(ctx) }()
	time.Sleep(10 * time.Millisecond)
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(release)
	if err := <-long; err != nil {
		t.Errorf("the one that waited: %v", err)
	}
	if n := dials.Load(); n != 2 {
		t.Errorf("%d dials", n)
	}
}

func TestUnresponsiveAgent(t *testing.T) {
	defer agent.SetPatience(200 * time.Millisecond)()
	b := newSandbox(t)
	recovered := atomic.Int32{}
	s := b.session(agent.SessionConfig{
		Dial: b.dial,
		Recover: func(ctx context.Context) error {
			recovered.Add(1)
			return b.cmd.Process.Signal(syscall.SIGCONT)
		},
	})
	if err := s.Adopt(ctx, b.stream()); err != nil {
		t.Fatal(err)
	}
	warnings := atomic.Int32{}
	ctx := event.NewContext(ctx, event.Func(func(e event.Event) {
		if e.Level == event.Warning && strings.Contains(e.Text, "other commands in it ended too") {
			warnings.Add(1)
		}
	}))
	freeze := func() {
		b.cmd.Process.Signal(syscall.SIGSTOP)
		waitFor(t, func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", b.cmd.Process.Pid))
			return err == nil && strings.Contains(string(stat), ") T ")
		})
	}
	began := func() func(provider.Stream, []byte) {
		return func(provider.Stream, []byte) { freeze() }
	}

	r, err := s.Exec(ctx, provider.Command{Shell: "echo begun; sleep 1000", Timeout: 300 * time.Millisecond, OnOutput: began()})
	if err != nil || !r.TimedOut || string(r.Stdout) != "begun\n" || r.ExitCode != -1 {
		t.Errorf("a timeout: %+v, %v", r, err)
	}
	cancelCtx, cancel := context.WithCancelCause(ctx)
	cause := errors.New("enough")
	r, err = s.Exec(cancelCtx, provider.Command{Shell: "echo begun; sleep 1000", OnOutput: func(provider.Stream, []byte) {
		freeze()
		cancel(cause)
	}})
	if !errors.Is(err, cause) || r == nil || string(r.Stdout) != "begun\n" {
		t.Errorf("a cancellation: %+v, %v", r, err)
	}
	if err := s.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	freeze()
	if n, err := s.KillAll(ctx); err != nil || n != 0 {
		t.Errorf("KillAll: %d, %v", n, err)
	}
	if err := s.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	freeze()
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	if err := s.Mkdir(short, "x"); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, provider.ErrSessionLost) {
		t.Errorf("Mkdir: %v", err)
	}
	b.cmd.Process.Signal(syscall.SIGCONT)
	if err := s.Ping(ctx); err != nil {
		t.Error(err)
	}
	if recovered.Load() != 3 || warnings.Load() != 3 {
		t.Errorf("recovered %d times, %d warnings, want 3", recovered.Load(), warnings.Load())
	}
}

// TestKillThatFails: an agent that cannot find what it has to end says so, and
// everything is ended from outside.
func TestKillThatFails(t *testing.T) {
	b := newSandbox(t)
	limit := func(n uint64) {
		if err := unix.Prlimit(b.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: 1024}, nil); err != nil {
			t.Error(err)
		}
	}
	recovered, failing := atomic.Int32{}, atomic.Bool{}
	s := b.session(agent.SessionConfig{
		Dial: func(context.Context) (io.ReadWriteCloser, error) { return b.dialSoon() },
		Recover: func(context.Context) error {
			recovered.Add(1)
			limit(1024)
			if failing.Load() {
				return errors.New("the engine is on strike")
			}
			return nil
		},
	})
	var warning atomic.Value
	ctx := event.NewContext(ctx, event.Func(func(e event.Event) {
		if e.Level == event.Warning {
			warning.Store(e.Text)
		}
	}))
	blind := func(provider.Stream, []byte) { limit(3) }
	r, err := s.Exec(ctx, provider.Command{Shell: "echo begun; sleep 1000", Timeout: 300 * time.Millisecond, OnOutput: blind})
	if err != nil || !r.TimedOut || string(r.Stdout) != "begun\n" || r.Signal != "SIGKILL" {
		t.Errorf("a timeout: %+v, %v", r, err)
	}
	if text, _ := warning.Load().(string); !strings.Contains(text, "too many open files") || !strings.Contains(text, "other commands in it ended too") {
		t.Errorf("warning %q", text)
	}
	p := mustStart(t, s, provider.Command{Shell: "exec sleep 1000"})
	limit(3)
	if err := p.Signal(ctx, "KILL"); err != nil {
		t.Errorf("a signal: %v", err)
	}
	mustStart(t, s, provider.Command{Shell: "exec sleep 1000", Tag: "x"})
	limit(3)
	if _, err := s.Kill(ctx, "x"); err != nil {
		t.Errorf("a tag: %v", err)
	}
	failing.Store(true)
	cause := errors.New("enough")
	cancelCtx, cancel := context.WithCancelCause(ctx)
	_, err = s.Exec(cancelCtx, provider.Command{Shell: "echo begun; sleep 1000", OnOutput: func(provider.Stream, []byte) {
		limit(3)
		cancel(cause)
	}})
	if !errors.Is(err, cause) || !errors.Is(err, provider.ErrSessionLost) {
		t.Errorf("a cancellation where nothing helps: %v", err)
	}
	if n := recovered.Load(); n != 4 {
		t.Errorf("recovered %d times, want 4", n)
	}
}

// cut is a stream that breaks after some bytes in either direction.
type cut struct {
	io.ReadWriteCloser
	reads, writes atomic.Int64
}

func (c *cut) Read(p []byte) (int, error) {
	left := c.reads.Load()
	if left <= 0 {
		c.Close()
		return 0, io.EOF
	}
	n, err := c.ReadWriteCloser.Read(p[:min(int64(len(p)), left)])
	c.reads.Add(-int64(n))
	return n, err
}

func (c *cut) Write(p []byte) (int, error) {
	left := c.writes.Load()
	n, err := c.ReadWriteCloser.Write(p[:min(int64(len(p)), max(left, 0))])
	c.writes.Add(-int64(n))
	if err == nil && n < len(p) {
		c.Close()
		return n, io.ErrClosedPipe
	}
	return n, err
}

// transcript does a bit of everything. Whatever happens to the connection, it
// ends.
func transcript(s *agent.Session) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	s.Exec(ctx, provider.Command{Shell: "cat; echo x >&2; sleep 0.01", Stdin: strings.NewReader("input"), Tag: "cut"})
	s.Exec(ctx, provider.Command{Shell: "echo a; echo b; sleep 0.01", OnOutput: func(provider.Stream, []byte) {}, Tag: "cut"})
	s.Exec(ctx, provider.Command{Shell: "sleep 1000", Timeout: 10 * time.Millisecond, Tag: "cut"})
	short, stop := context.WithTimeout(ctx, 10*time.Millisecond)
	s.Exec(short, provider.Command{Shell: "sleep 1000", Tag: "cut"})
	stop()
	s.WriteFile(ctx, "f", strings.NewReader("content"), provider.WriteOptions{})
	s.ReadFile(ctx, "f", provider.ReadOptions{})
	s.ReadDir(ctx, ".", true)
	s.Download(ctx, ".", io.Discard)
	s.Processes(ctx)
	s.Remove(ctx, "f")
}

// TestConnectionCutAnywhere breaks the connection after every so many bytes of
// the transcript: no call may hang, and no command may be left.
func TestConnectionCutAnywhere(t *testing.T) {
	b, watcher := newSession(t)
	const all = 1 << 40
	measure := &cut{}
	run := func(reads, writes int64) {
		first := true
		s := b.session(agent.SessionConfig{Dial: func(context.Context) (io.ReadWriteCloser, error) {
			if !first {
				return nil, errors.New("cut")
			}
			first = false
			c, err := b.dial(ctx)
			measure = &cut{ReadWriteCloser: c}
			measure.reads.Store(reads)
			measure.writes.Store(writes)
			return measure, err
		}})
		defer s.Close()
		start := time.Now()
		transcript(s)
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("cut after %d bytes read, %d written: took %v", reads, writes, took)
		}
	}
	run(all, all)
	reads, writes := all-measure.reads.Load(), all-measure.writes.Load()
	t.Logf("the transcript has %d bytes read, %d written", reads, writes)
	const points = 60
	for i := range int64(points) {
		run(i*reads/points+i%12, all)
		run(all, i*writes/points+i%12)
	}
	waitFor(t, func() bool {
		list, err := watcher.Processes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return len(list) == 0
	})
	b.noTemporaries()
}

// TestPaused: nothing is lost while the agent is stopped for a while.
func TestPaused(t *testing.T) {
	b, s := newSession(t)
	done := make(chan error, 1)
	go func() {
		_, err := s.Exec(ctx, provider.Command{Shell: "sleep 0.2; echo x"})
		done <- err
	}()
	waitFor(t, func() bool {
		list, err := s.Processes(ctx)
		return err == nil && len(list) == 1
	})
	b.cmd.Process.Signal(syscall.SIGSTOP)
	go func() { done <- s.Ping(ctx) }()
	time.Sleep(500 * time.Millisecond)
	b.cmd.Process.Signal(syscall.SIGCONT)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
