package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/provider"
)

// Exec runs a command, see [provider.Sandbox]. A Stdin whose Read waits for ever
// keeps a goroutine, but neither the command nor Exec.
func (s *Session) Exec(ctx context.Context, cmd provider.Command) (*provider.Result, error) {
	const op = "exec"
	if err := cmd.Validate(); err != nil {
		return nil, s.fail(ctx, op, err)
	}
	started := time.Now()
	req := &request{Request: wire.Request{Op: wire.OpExec, Command: wireCommand(&cmd)}, timeout: cmd.Timeout}
	if cmd.Stdin != nil {
		req.Input, req.input = true, cmd.Stdin
	}
	if tty := cmd.Terminal; tty != nil {
		req.Op, req.resize = wire.OpTerminal, tty.Resize
		if req.Command.TTY = window(tty.Size); tty.Size == (provider.WindowSize{}) {
			req.Command.TTY = &wire.WindowSize{Rows: 24, Columns: 80}
		}
		if !req.Input {
			req.Input, req.input = true, strings.NewReader("")
		}
	}
	recovered := s.recoverable(ctx, req)
	out := &collector{onOutput: cmd.OnOutput, keeper: wire.NewKeeper(req.Command.MaxOutput)}
	resp, err := s.roundTrip(ctx, &s.main, req, out.frame)

	result := &provider.Result{ExitCode: -1, Duration: time.Since(started)}
	if resp != nil && resp.Result != nil {
		result = resultOf(resp.Result)
		out.cut[0] = out.cut[0] || resp.Result.CutStdout
		out.cut[1] = out.cut[1] || resp.Result.CutStderr
	}
	out.fill(result)
	switch {
	case err == nil && resp.Error != nil:
		return nil, s.fail(ctx, op, resp.Error.Decode())
	case err == nil && resp.Result == nil:
		return nil, s.fail(ctx, op, errIncomplete)
	case err == nil:
		return result, nil
	case recovered.Load() != nil:
		// Everything in the sandbox has been ended, and so was the command. The
		// connection breaks before that is over, so this waits for it.
		if recoverErr := s.recover(ctx, recovered.Load(), nil); recoverErr != nil {
			return result, s.fail(ctx, op, err)
		}
		result.Signal = "SIGKILL"
		if cause := context.Cause(ctx); cause != nil {
			return result, s.fail(ctx, op, cause)
		}
		result.TimedOut = true
		return result, nil
	case errors.As(err, new(*lostError)) || resp == nil || resp.Result == nil:
		return nil, s.fail(ctx, op, err)
	}
	return result, s.fail(ctx, op, err)
}

func wireCommand(cmd *provider.Command) *wire.Command {
	w := &wire.Command{
		Shell: []byte(cmd.Shell), Dir: []byte(cmd.Dir), Tag: cmd.Tag, Timeout: cmd.Timeout,
		MaxOutput: cmd.MaxOutput, Stream: cmd.OnOutput != nil,
	}
	if w.MaxOutput == 0 {
		w.MaxOutput = provider.DefaultMaxOutput
	}
	for _, arg := range cmd.Args {
		w.Args = append(w.Args, []byte(arg))
	}
	for name, value := range cmd.Env {
		w.Env = append(w.Env, []byte(name+"="+value))
	}
	return w
}

func window(s provider.WindowSize) *wire.WindowSize {
	return &wire.WindowSize{Rows: s.Rows, Columns: s.Columns}
}

func resultOf(r *wire.Result) *provider.Result {
	return &provider.Result{
		ExitCode: r.ExitCode, Signal: signalName(r.Signal), TimedOut: r.TimedOut, OutOfMemory: r.OutOfMemory,
		Truncated: r.CutStdout || r.CutStderr, Duration: r.Duration,
	}
}

// signalName passes what can be a signal's name: it comes from the sandbox.
func signalName(s string) string {
	if len(s) > 16 || strings.ContainsFunc(s, func(r rune) bool { return !(r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '+') }) {
		return "unknown"
	}
	return s
}

// collector gathers a command's output and holds the agent to the cap.
type collector struct {
	onOutput func(provider.Stream, []byte)
	keeper   wire.Keeper
	kept     [2][]byte
	cut      [2]bool
	buf      []byte
}

func (c *collector) frame(o *operation, t wire.Type, n int) error {
	var stream provider.Stream
	switch t {
	case wire.TypeStdout:
		stream = provider.Stdout
	case wire.TypeStderr:
		stream = provider.Stderr
	default:
		return nil // unknown frames are tolerated
	}
	i := wire.Index(stream)
	if c.onOutput == nil {
		b := slices.Grow(c.kept[i], n)
		b = b[:len(b)+n]
		c.kept[i] = b
		if _, err := io.ReadFull(o.s.in, b[len(b)-n:]); err != nil {
			return o.lost(err)
		}
		c.keeper.Keep(stream, b[len(b)-n:])
		if c.keeper.Cut(stream) {
			return o.lost(fmt.Errorf("%w: more output than the command may have", wire.ErrGarbled))
		}
		return nil
	}
	if c.buf == nil {
		c.buf = make([]byte, wire.MaxData)
	}
	b := c.buf[:n]
	if _, err := io.ReadFull(o.s.in, b); err != nil {
		return o.lost(err)
	}
	c.kept[i] = append(c.kept[i], c.keeper.Keep(stream, b)...)
	c.cut[i] = c.keeper.Cut(stream)
	o.busy.Store(true)
	c.onOutput(stream, b)
	o.busy.Store(false)
	return nil
}

// fill puts the output into a result.
func (c *collector) fill(r *provider.Result) {
	for i := range c.kept {
		if c.cut[i] {
			c.kept[i] = wire.TrimCut(c.kept[i])
			r.Truncated = true
		}
	}
	r.Stdout, r.Stderr = c.kept[0], c.kept[1]
}

// Kill ends every command with one of the tags, see [provider.Sandbox].
func (s *Session) Kill(ctx context.Context, tags ...string) (int, error) {
	for _, tag := range tags {
		if err := provider.CheckTag(tag); err != nil {
			return 0, s.fail(ctx, "kill", err)
		}
	}
	if len(tags) == 0 {
		return 0, nil
	}
	return s.kill(ctx, "kill", &request{Request: wire.Request{Op: wire.OpKill, Tags: tags}})
}

// KillAll ends every process in the sandbox, see [provider.Sandbox].
func (s *Session) KillAll(ctx context.Context) (int, error) {
	return s.kill(ctx, "kill all", &request{Request: wire.Request{Op: wire.OpKillAll}})
}

func (s *Session) kill(ctx context.Context, op string, req *request) (int, error) {
	req.timeout = time.Nanosecond // only the agent's patience counts
	recovered := s.recoverable(ctx, req)
	resp, err := s.do(ctx, op, &s.main, req, nil)
	if err != nil {
		if c := recovered.Load(); c != nil && ctx.Err() == nil && s.recover(ctx, c, nil) == nil {
			return 0, nil // nothing runs any more, and nobody knows how many did
		}
		return 0, err
	}
	return max(resp.Count, 0), nil
}
