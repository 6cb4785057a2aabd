package starlibtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/capybara-hq/capyrun/provider"
)

// Handler runs a command and returns its exit code. It must return soon after
// ctx is done: the command was killed.
type Handler func(ctx context.Context, c *Call) int

// Call is a command that runs.
type Call struct {
	Sandbox *Sandbox
	Command provider.Command
	Args    []string // the words of the command, separated by spaces in a command line
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
}

func exit(_ context.Context, c *Call) int {
	code, err := strconv.Atoi(c.Args[1])
	if err != nil {
		fmt.Fprintf(c.Stderr, "exit: %v\n", err)
		return 2
	}
	return code
}

func echo(_ context.Context, c *Call) int {
	out, words := c.Stdout, c.Args[1:]
	if n := len(words); n > 0 && words[n-1] == ">&2" {
		out, words = c.Stderr, words[:n-1]
	}
	fmt.Fprintln(out, strings.Join(words, " "))
	return 0
}

func cat(ctx context.Context, c *Call) int {
	if len(c.Args) == 1 {
		io.Copy(c.Stdout, c.Stdin)
		return 0
	}
	for _, name := range c.Args[1:] {
		file, err := c.Sandbox.ReadFile(ctx, name, provider.ReadOptions{})
		if err != nil {
			fmt.Fprintf(c.Stderr, "cat: %v\n", err)
			return 1
		}
		c.Stdout.Write(file.Data)
	}
	return 0
}

func sleep(ctx context.Context, c *Call) int {
	seconds, err := strconv.ParseFloat(c.Args[1], 64)
	if err != nil {
		fmt.Fprintf(c.Stderr, "sleep: %v\n", err)
		return 1
	}
	timer := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return 0
}

// running is a command that has been started.
type running struct {
	tag    string
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// killed is the cause of a command's end by a signal.
type killed string

func (k killed) Error() string { return "killed by " + string(k) }

func (r *running) kill(signal string) { r.cancel(killed(signal)) }

// run runs a command to its end. started is called once it can be killed.
func (s *Sandbox) run(ctx context.Context, cmd provider.Command, stdin io.Reader, out *output, started func(*running)) (*provider.Result, error) {
	fn := s.fake.find(&cmd)
	args := cmd.Args
	if cmd.Shell != "" {
		args = strings.Fields(cmd.Shell)
	}
	if fn == nil {
		if cmd.Shell == "" {
			return nil, &provider.Error{Op: "exec", Sandbox: s.spec.Name, Kind: provider.ErrNotStarted, Err: fmt.Errorf("%s: no such program", args[0])}
		}
		fn = func(_ context.Context, c *Call) int {
			fmt.Fprintf(c.Stderr, "sh: %s: not found\n", c.Args[0])
			return 127
		}
	}
	begin := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(errEnded) })()
	r := &running{tag: cmd.Tag, cancel: cancel, done: make(chan struct{})}
	s.mu.Lock()
	if s.running == nil {
		s.running = map[*running]struct{}{}
	}
	s.running[r] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.running, r)
		s.mu.Unlock()
		close(r.done)
	}()
	if cmd.Timeout > 0 {
		timer := time.AfterFunc(cmd.Timeout, func() { cancel(errTimeout) })
		defer timer.Stop()
	}
	started(r)
	code := fn(ctx, &Call{Sandbox: s, Command: cmd, Args: args, Stdin: stdin, Stdout: out.writer(provider.Stdout), Stderr: out.writer(provider.Stderr)})
	res := &provider.Result{ExitCode: code, Duration: time.Since(begin)}
	if ctx.Err() == nil {
		return res, nil
	}
	res.ExitCode, res.Signal = -1, "SIGKILL"
	switch cause := context.Cause(ctx).(type) {
	case killed:
		res.Signal = string(cause)
	default:
		if cause != errTimeout {
			return res, &provider.Error{Op: "exec", Sandbox: s.spec.Name, Err: cause}
		}
		res.TimedOut = true
	}
	return res, nil
}

var errTimeout = fmt.Errorf("the command's time is over")

// Exec implements [provider.Sandbox].
func (s *Sandbox) Exec(ctx context.Context, cmd provider.Command) (*provider.Result, error) {
	if err := cmd.Validate(); err != nil {
		return nil, &provider.Error{Op: "exec", Sandbox: s.spec.Name, Err: err}
	}
	if cmd.Terminal != nil {
		return nil, &provider.Error{Op: "exec", Sandbox: s.spec.Name, Kind: provider.ErrUnsupported, Err: errors.New("the fake has no terminals")}
	}
	if err := s.enter(ctx, "exec"); err != nil {
		return nil, err
	}
	if cmd.Stdin == nil {
		cmd.Stdin = bytes.NewReader(nil)
	}
	out := &output{max: cmd.MaxOutput, on: cmd.OnOutput}
	res, err := s.run(ctx, cmd, cmd.Stdin, out, func(*running) {})
	if res != nil {
		kept := out.kept()
		res.Stdout, res.Stderr, res.Truncated = kept.Stdout, kept.Stderr, kept.Truncated
	}
	return res, err
}

// output collects what a command writes.
type output struct {
	max int64
	on  func(provider.Stream, []byte)

	mu        sync.Mutex
	out       [3]bytes.Buffer // by stream
	pieces    []piece         // the same in order
	more      chan struct{}   // closed at the next piece; nil: nobody waits for it
	truncated bool
}

type piece struct {
	stream provider.Stream
	data   []byte
}

// after returns all but the first n pieces, and what is closed when there are
// more.
func (o *output) after(n int) ([]piece, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more == nil {
		o.more = make(chan struct{})
	}
	return o.pieces[n:len(o.pieces):len(o.pieces)], o.more
}

type streamWriter struct {
	o      *output
	stream provider.Stream
}

func (o *output) writer(stream provider.Stream) io.Writer { return streamWriter{o, stream} }

// Write keeps what fits and hands on everything.
func (w streamWriter) Write(data []byte) (int, error) {
	o := w.o
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.on != nil && len(data) > 0 {
		o.on(w.stream, data)
	}
	limit := o.max
	if limit == 0 {
		limit = provider.DefaultMaxOutput
	}
	room := limit - int64(o.out[provider.Stdout].Len()) - int64(o.out[provider.Stderr].Len())
	keep := data
	if int64(len(keep)) > room {
		keep, o.truncated = keep[:room], true
	}
	o.out[w.stream].Write(keep)
	if len(keep) > 0 {
		o.pieces = append(o.pieces, piece{w.stream, bytes.Clone(keep)})
		if o.more != nil {
			close(o.more)
			o.more = nil
		}
	}
	return len(data), nil
}

func (o *output) kept() provider.Output {
	o.mu.Lock()
	defer o.mu.Unlock()
	return provider.Output{
		Stdout:    bytes.Clone(o.out[provider.Stdout].Bytes()),
		Stderr:    bytes.Clone(o.out[provider.Stderr].Bytes()),
		Truncated: o.truncated,
	}
}
