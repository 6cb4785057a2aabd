package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/provider"
)

// Start runs a command in the background, see [provider.Sandbox]. A Stdin is
// sent by this program, for as long as it and the session last.
func (s *Session) Start(ctx context.Context, cmd provider.Command) (provider.Process, error) {
	if err := cmd.ValidateStart(); err != nil {
		return nil, s.fail(ctx, "start", err)
	}
	p, err := s.process(ctx, "start", &request{Request: wire.Request{Op: wire.OpStart, Command: wireCommand(&cmd)}})
	if err != nil {
		return nil, err
	}
	if cmd.Stdin != nil {
		go p.feed(cmd.Stdin)
	}
	return p, nil
}

// Process finds a background process, see [provider.Sandbox].
func (s *Session) Process(ctx context.Context, idOrTag string) (provider.Process, error) {
	p, err := s.process(ctx, "find process", &request{Request: wire.Request{Op: wire.OpFind, ID: idOrTag}})
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (s *Session) process(ctx context.Context, op string, req *request) (*process, error) {
	resp, err := s.do(ctx, op, &s.main, req, nil)
	if err != nil {
		return nil, err
	}
	if resp.Process == nil || !validID(resp.Process.ID) {
		return nil, s.fail(ctx, op, errIncomplete)
	}
	return &process{s: s, id: resp.Process.ID, pid: resp.Process.PID}, nil
}

func validID(id string) bool {
	return id != "" && len(id) <= 64 && !strings.ContainsFunc(id, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r == '-')
	})
}

// Processes lists the commands of the sandbox, see [provider.Sandbox], oldest
// first.
func (s *Session) Processes(ctx context.Context) ([]provider.ProcessInfo, error) {
	var list []provider.ProcessInfo
	_, err := s.do(ctx, "list processes", &s.main, &request{Request: wire.Request{Op: wire.OpList}}, collect(func(p *wire.Process) {
		list = append(list, processInfo(p))
	}))
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(list, func(a, b provider.ProcessInfo) int { return a.Started.Compare(b.Started) })
	return list, nil
}

func processInfo(p *wire.Process) provider.ProcessInfo {
	info := p.Info()
	info.Command = strings.ToValidUTF8(info.Command, "?")
	if info.Signal != "" {
		info.Signal = signalName(info.Signal)
	}
	return info
}

// Bounds on a list that arrives from a sandbox.
const (
	maxItems     = 1_000_000
	maxItemBytes = 256 << 20
)

// collect returns a frame handler that gives every item of a list to add.
func collect[T any](add func(*T)) func(*operation, wire.Type, int) error {
	count, size := 0, 0
	return func(o *operation, t wire.Type, n int) error {
		if t != wire.TypeItems {
			return nil
		}
		b, err := o.s.in.Payload()
		if err != nil {
			return o.lost(err)
		}
		var items []T
		if err := json.Unmarshal(b, &items); err != nil {
			return o.lost(fmt.Errorf("%w: %w", wire.ErrGarbled, err))
		}
		count += len(items)
		if size += n; count > maxItems || size > maxItemBytes {
			return o.lost(fmt.Errorf("%w: the list is too long", wire.ErrGarbled))
		}
		for i := range items {
			add(&items[i])
		}
		return nil
	}
}

// process is a background process. It names it and holds nothing of it, so it
// outlives connections.
type process struct {
	s   *Session
	id  string
	pid int
}

func (p *process) ID() string { return p.id }
func (p *process) PID() int   { return p.pid }

func (p *process) request(op wire.Op) *request {
	return &request{Request: wire.Request{Op: op, ID: p.id}}
}

func (p *process) Info(ctx context.Context) (provider.ProcessInfo, error) {
	resp, err := p.s.do(ctx, "process "+p.id, &p.s.main, p.request(wire.OpFind), nil)
	if err != nil {
		return provider.ProcessInfo{}, err
	}
	if resp.Process == nil || resp.Process.ID != p.id {
		return provider.ProcessInfo{}, p.s.fail(ctx, "process "+p.id, errIncomplete)
	}
	return processInfo(resp.Process), nil
}

func (p *process) Wait(ctx context.Context) (*provider.Result, error) {
	op := "wait for process " + p.id
	out := &collector{keeper: wire.NewKeeper(maxKept)}
	resp, err := p.s.do(ctx, op, &p.s.main, p.request(wire.OpWait), out.frame)
	if err != nil {
		return nil, err
	}
	if resp.Result == nil {
		return nil, p.s.fail(ctx, op, errIncomplete)
	}
	r := resultOf(resp.Result)
	r.Stdout, r.Stderr = out.kept[0], out.kept[1]
	return r, nil
}

// maxKept bounds the output of a background process that an agent may send.
const maxKept = 1 << 30

func (p *process) Output(ctx context.Context) (*provider.Output, error) {
	out := &collector{keeper: wire.NewKeeper(maxKept)}
	resp, err := p.s.do(ctx, "output of process "+p.id, &p.s.main, p.request(wire.OpOutput), out.frame)
	if err != nil {
		return nil, err
	}
	return &provider.Output{Stdout: out.kept[0], Stderr: out.kept[1], Truncated: resp.Truncated}, nil
}

func (p *process) Follow(ctx context.Context, onOutput func(provider.Stream, []byte)) (*provider.Result, error) {
	op := "follow process " + p.id
	out := &collector{onOutput: func(s provider.Stream, data []byte) {
		if ctx.Err() == nil { // else this is what was under way
			onOutput(s, data)
		}
	}}
	resp, err := p.s.do(ctx, op, &p.s.main, p.request(wire.OpFollow), out.frame)
	if err != nil {
		return nil, err
	}
	if resp.Result == nil {
		return nil, p.s.fail(ctx, op, errIncomplete)
	}
	return resultOf(resp.Result), nil
}

func (p *process) Signal(ctx context.Context, signal string) error {
	op, req := "signal process "+p.id, p.request(wire.OpSignal)
	req.Request.Signal = signal
	if name := strings.ToUpper(signal); name == "KILL" || name == "SIGKILL" || name == "9" {
		_, err := p.s.kill(ctx, op, req)
		return err
	}
	_, err := p.s.do(ctx, op, &p.s.main, req, nil)
	return err
}

func (p *process) Write(ctx context.Context, data []byte) error {
	req := p.request(wire.OpInput)
	req.Input, req.input = true, bytes.NewReader(data)
	_, err := p.s.do(ctx, "write to process "+p.id, &p.s.main, req, nil)
	return err
}

func (p *process) CloseStdin(ctx context.Context) error {
	_, err := p.s.do(ctx, "close the input of process "+p.id, &p.s.main, p.request(wire.OpNoInput), nil)
	return err
}

// feed sends an input to its end. What fails here ends the input: the process
// sees it, and there is nobody else to tell.
func (p *process) feed(input io.Reader) {
	ctx := context.Background()
	buf := make([]byte, 64<<10)
	for {
		n, err := input.Read(buf)
		if n > 0 {
			if writeErr := p.Write(ctx, buf[:n]); writeErr != nil {
				if errors.Is(writeErr, provider.ErrSessionLost) {
					return // it may have been written or not: going on could garble it
				}
				break
			}
		}
		if err != nil {
			break
		}
	}
	p.CloseStdin(ctx)
}
