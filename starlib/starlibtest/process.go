package starlibtest

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/capybara-hq/capyrun/provider"
)

// process is a command in the background.
type process struct {
	sb      *Sandbox
	id      string
	pid     int
	cmd     provider.Command
	started time.Time
	out     *output
	stdin   *io.PipeWriter
	r       *running
	done    chan struct{}

	mu     sync.Mutex
	result *provider.Result // once it has ended
}

// Start implements [provider.Sandbox].
func (s *Sandbox) Start(ctx context.Context, cmd provider.Command) (provider.Process, error) {
	if err := cmd.ValidateStart(); err != nil {
		return nil, &provider.Error{Op: "start", Sandbox: s.spec.Name, Err: err}
	}
	if err := s.enter(ctx, "start"); err != nil {
		return nil, err
	}
	if s.fake.find(&cmd) == nil && cmd.Shell == "" {
		return nil, &provider.Error{Op: "start", Sandbox: s.spec.Name, Kind: provider.ErrNotStarted, Err: fmt.Errorf("%s: no such program", cmd.Args[0])}
	}
	pr, pw := io.Pipe()
	var stdin io.Reader = pr
	if cmd.Stdin != nil {
		stdin = cmd.Stdin
	}
	s.mu.Lock()
	n := len(s.order) + 1
	p := &process{
		sb: s, id: fmt.Sprintf("p%d", n), pid: 100 + n, cmd: cmd, started: time.Now(),
		out: &output{max: cmd.MaxOutput}, stdin: pw, done: make(chan struct{}),
	}
	s.procs[p.id] = p
	s.order = append(s.order, p.id)
	s.mu.Unlock()

	ready := make(chan struct{})
	s.fake.running.Go(func() {
		defer close(p.done)
		stop := context.AfterFunc(s.ctx, func() { pr.CloseWithError(errEnded) })
		defer stop()
		res, _ := s.run(s.ctx, cmd, stdin, p.out, func(r *running) { p.r = r; close(ready) })
		pr.CloseWithError(io.ErrClosedPipe)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.result = res
	})
	<-ready
	return p, nil
}

func (p *process) ID() string { return p.id }
func (p *process) PID() int   { return p.pid }

func (p *process) Info(context.Context) (provider.ProcessInfo, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	info := provider.ProcessInfo{
		ID: p.id, PID: p.pid, Command: p.cmd.String(), Tag: p.cmd.Tag, Background: true,
		Started: p.started, Running: p.result == nil, ExitCode: -1,
	}
	if p.result != nil {
		info.ExitCode, info.Signal = p.result.ExitCode, p.result.Signal
	}
	return info, nil
}

func (p *process) Wait(ctx context.Context) (*provider.Result, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, &provider.Error{Op: "wait", Sandbox: p.sb.spec.Name, Err: context.Cause(ctx)}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	res, kept := *p.result, p.out.kept()
	res.Stdout, res.Stderr, res.Truncated = kept.Stdout, kept.Stderr, kept.Truncated
	return &res, nil
}

// Signal ends the process, whatever the signal is.
func (p *process) Signal(_ context.Context, signal string) error {
	name := "SIG" + strings.TrimPrefix(strings.ToUpper(signal), "SIG")
	p.r.kill(name)
	<-p.done
	return nil
}

func (p *process) Write(ctx context.Context, data []byte) error {
	stop := context.AfterFunc(ctx, func() { p.stdin.CloseWithError(context.Cause(ctx)) })
	defer stop()
	if _, err := p.stdin.Write(data); err != nil {
		return &provider.Error{Op: "write to process " + p.id, Sandbox: p.sb.spec.Name, Kind: provider.ErrGone, Err: err}
	}
	return nil
}

func (p *process) CloseStdin(context.Context) error { return p.stdin.Close() }

func (p *process) Follow(ctx context.Context, onOutput func(provider.Stream, []byte)) (*provider.Result, error) {
	for at, ended := 0, false; ; {
		pieces, more := p.out.after(at)
		for _, piece := range pieces {
			if ctx.Err() == nil {
				onOutput(piece.stream, piece.data)
			}
		}
		at += len(pieces)
		switch {
		case ctx.Err() != nil:
			return nil, &provider.Error{Op: "follow", Sandbox: p.sb.spec.Name, Err: context.Cause(ctx)}
		case len(pieces) > 0:
			continue
		case ended:
			res, err := p.Wait(ctx)
			if err == nil {
				res.Stdout, res.Stderr = nil, nil
			}
			return res, err
		}
		select {
		case <-more:
		case <-p.done:
			ended = true
		case <-ctx.Done():
		}
	}
}

func (p *process) Output(context.Context) (*provider.Output, error) {
	out := p.out.kept()
	return &out, nil
}
