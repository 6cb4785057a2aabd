//go:build linux

package server

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/provider"
)

// bufferOutput is how much output waits for the end of its command, so that a
// small result travels in one write.
const bufferOutput = 32 << 10

// execOutput sends a command's output to the client that waits for it.
type execOutput struct {
	stream bool // all of it, at once

	mu     sync.Mutex
	keeper wire.Keeper
	out    *wire.Writer // nil: nobody wants more
}

func (o *execOutput) sink(s provider.Stream, data []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.out == nil {
		return
	}
	if !o.stream {
		data = o.keeper.Keep(s, data)
	}
	o.out.Raw(wire.OutputType(s), data)
	if o.stream || o.out.Buffered() > bufferOutput {
		// A slow client slows the command down here.
		if o.out.Flush() != nil {
			o.out = nil
		}
	}
}

// close ends the output: what comes later is dropped.
func (o *execOutput) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.out = nil
}

// exec runs a command in the foreground: it ends with the operation.
func (c *call) exec(ctx context.Context) *wire.Response {
	ss := c.session
	cs, cmd := ss.server.cmds, c.req.Command
	if cmd == nil {
		return failure(&provider.InvalidError{Field: "cmd", Reason: "must not be empty"})
	}
	if c.last = c.req.Op == wire.OpTerminal; !c.last {
		cmd.TTY = nil
	} else if cmd.TTY == nil {
		cmd.TTY = &wire.WindowSize{}
	}
	out := &execOutput{stream: cmd.Stream, keeper: wire.NewKeeper(cmd.MaxOutput), out: c.out}
	p := &command{}
	if err := cs.start(cmd, p, c.req.Input, out.sink); err != nil {
		return failure(err)
	}
	defer out.close()
	if p.terminal != nil {
		attended := make(chan struct{})
		attend, leave := context.WithCancel(ctx)
		go func() {
			defer close(attended)
			c.attend(attend, p.terminal)
		}()
		defer func() {
			leave()
			p.terminal.close() // ends a write that nobody reads
			<-attended
		}()
	} else if c.req.Input {
		input := c.input(ctx)
		c.reading = make(chan struct{})
		go func() {
			defer close(c.reading)
			// A command need not read its input: EPIPE is no failure. An input that
			// breaks off is the client's to report, by cancelling.
			io.Copy(p.stdin, input)
			p.stdin.Close()
		}()
		defer p.stdin.Close() // ends a write that nobody reads
	}

	var deadline <-chan time.Time
	if cmd.Timeout > 0 {
		timer := time.NewTimer(cmd.Timeout)
		defer timer.Stop()
		deadline = timer.C
	}
	timedOut := false
	var err error
	select {
	case <-p.done:
	case <-deadline:
		timedOut = true
		err = cs.killTrees(p)
	case <-ctx.Done():
		err = cs.killTrees(p)
	}
	if err == nil {
		if p.terminal != nil {
			p.terminal.release()
		}
		p.drain(ss.ctx)
	}
	out.close()
	if err != nil {
		return unended(err)
	}
	resp := &wire.Response{Result: p.result(cs)}
	resp.Result.TimedOut = timedOut
	resp.Result.CutStdout, resp.Result.CutStderr = out.keeper.Cut(provider.Stdout), out.keeper.Cut(provider.Stderr)
	if cause := context.Cause(ctx); cause != nil {
		resp.Error = wire.EncodeError(cause)
	}
	return resp
}
