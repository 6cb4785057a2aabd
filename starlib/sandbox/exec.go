package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	startime "go.starlark.net/lib/time"
	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/starlib/script"
)

// sb.exec(cmd, timeout, env, cwd, stdin, tag, max_output, check, on_line, tty)
// runs a command and returns when it has ended:
//
//   - cmd: a string is a shell command line, a list is a program and its
//     arguments, run without a shell
//   - timeout: ends the command with all its descendants; the default is that
//     of --exec-timeout
//   - env: a dict, added to the sandbox's environment
//   - cwd: the working directory; default /workspace
//   - stdin: a string or bytes
//   - tag: a word for sb.kill
//   - max_output: how much of both outputs together is kept; default "1M"
//   - check: False returns the result of a failed command instead of failing
//   - on_line: a function that gets every line of output, of both streams, as
//     it comes; its failure ends the command
//   - tty: True gives it a terminal, for programs that behave differently on
//     one; all output is then in .stdout, with "\r\n" at the ends of lines
//
// The result has .exit_code (None if a signal ended the command), .ok, .stdout,
// .stderr, .signal, .timed_out, .oom, .truncated and .duration.
//
// A command that fails, times out or is killed fails the workflow with kind
// "command failed" or "timed out", unless check = False.
func exec(t *script.Thread, th *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var (
		cmd    = command{timeout: t.ExecTimeout}
		check  = true
		tty    bool
		onLine starlark.Callable
	)
	if err := cmd.unpack(args, kwargs, "check?", &check, "on_line??", &onLine, "tty?", &tty); err != nil {
		return nil, err
	}
	if tty {
		cmd.Terminal = &provider.Terminal{}
	}
	ctx, span := event.Begin(t.Ctx, event.Event{Kind: event.KindExec, Name: cmd.title(), Sandbox: s.sb.Name()})
	out := &outputEvents{ctx: ctx, left: cmd.maxOutput()}
	if event.Enabled(ctx) {
		cmd.OnOutput = out.add
	}
	var res *provider.Result
	var err error
	if onLine == nil {
		res, err = s.sb.Exec(ctx, cmd.Command)
	} else {
		res, err = withLines(ctx, lineCalls(th, onLine), func(ctx context.Context, onOutput outputFunc) (*provider.Result, error) {
			also := cmd.OnOutput
			cmd.OnOutput = func(stream provider.Stream, data []byte) {
				if also != nil {
					also(stream, data)
				}
				onOutput(stream, data)
			}
			return s.sb.Exec(ctx, cmd.Command)
		})
	}
	out.flush()
	if err == nil && check && !res.OK() {
		err = failed(s.sb.Name(), &cmd.Command, res)
	}
	span.End(err, resultAttrs(res))
	if err != nil {
		return nil, err
	}
	return newResult(res), nil
}

// command unpacks the arguments that exec and spawn share.
type command struct {
	provider.Command
	timeout time.Duration // default in, result out in Command.Timeout
}

func (c *command) unpack(args starlark.Tuple, kwargs []starlark.Tuple, more ...any) error {
	var (
		cmd     cmdline
		timeout = script.Timeout(c.timeout)
		env     script.StringMap
		stdin   script.Data
		max     script.Size
	)
	pairs := []any{"cmd", &cmd, "timeout??", &timeout, "env??", &env, "cwd??", &c.Dir, "stdin??", &stdin, "tag??", &c.Tag, "max_output??", &max}
	if err := script.Unpack(args, kwargs, append(pairs, more...)...); err != nil {
		return err
	}
	c.Shell, c.Args = cmd.shell, cmd.args
	c.Timeout, c.Env, c.MaxOutput = time.Duration(timeout), env, int64(max)
	if stdin != nil {
		c.Stdin = bytes.NewReader(stdin)
	}
	return c.Validate()
}

func (c *command) maxOutput() int64 {
	if c.MaxOutput > 0 {
		return c.MaxOutput
	}
	return provider.DefaultMaxOutput
}

func (c *command) title() string { return oneLine(c.Command.String()) }

// oneLine shortens a command for a title or a message.
func oneLine(cmd string) string {
	line, rest, more := strings.Cut(strings.TrimSpace(cmd), "\n")
	more = more && strings.TrimSpace(rest) != ""
	if r := []rune(line); len(r) > 100 {
		line, more = string(r[:100]), true
	}
	if more {
		line += " ..."
	}
	return line
}

// cmdline is a command line or a list of arguments.
type cmdline struct {
	shell string
	args  []string
}

// Unpack implements [starlark.Unpacker].
func (c *cmdline) Unpack(v starlark.Value) error {
	if s, ok := starlark.AsString(v); ok {
		if s == "" {
			return fmt.Errorf("must not be empty")
		}
		c.shell = s
		return nil
	}
	var args script.Strings
	if err := args.Unpack(v); err != nil {
		if _, isList := v.(starlark.Sequence); !isList {
			err = fmt.Errorf("got %s, want a string for the shell or a list of strings", v.Type())
		}
		return err
	}
	if len(args) == 0 {
		return fmt.Errorf("must not be empty")
	}
	c.args = args
	return nil
}

// lineCalls calls a Starlark function with lines.
func lineCalls(th *starlark.Thread, fn starlark.Callable) func(line string) error {
	return func(line string) error {
		_, err := starlark.Call(th, fn, starlark.Tuple{starlark.String(line)}, nil)
		return err
	}
}

type outputFunc = func(stream provider.Stream, data []byte)

// withLines runs something that has output and calls fn with each line of it, on
// the calling goroutine: fn runs Starlark code on the caller's thread, which must
// not run on two goroutines. A failure of fn ends what runs, and is the error.
func withLines(ctx context.Context, fn func(line string) error, run func(context.Context, outputFunc) (*provider.Result, error)) (*provider.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	type chunk struct {
		stream provider.Stream
		data   []byte
	}
	chunks := make(chan chunk) // no buffer: a slow fn slows the command down
	onOutput := func(stream provider.Stream, data []byte) {
		select {
		case chunks <- chunk{stream, bytes.Clone(data)}:
		case <-ctx.Done():
		}
	}
	var res *provider.Result
	var err error
	go func() {
		defer close(chunks)
		res, err = run(ctx, onOutput)
	}()
	var lines [3]lineSplitter // by stream
	var failure error
	call := func(line string) {
		if failure != nil {
			return
		}
		if failure = fn(line); failure != nil {
			cancel(failure)
		}
	}
	for c := range chunks {
		lines[c.stream].add(c.data, call)
	}
	lines[provider.Stdout].flush(call)
	lines[provider.Stderr].flush(call)
	if failure != nil {
		return res, failure
	}
	return res, err
}

// maxLine is the longest line that is handed on in one piece, in bytes.
const maxLine = 64 << 10

// lineSplitter joins lines that are split across chunks, and splits those that
// are longer than [maxLine].
type lineSplitter struct{ partial []byte }

func (l *lineSplitter) add(data []byte, fn func(string)) {
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		if end < 0 {
			l.partial = append(l.partial, data...)
			for len(l.partial) > maxLine {
				cut := runeCut(l.partial[:maxLine])
				fn(valid(l.partial[:cut]))
				l.partial = append(l.partial[:0], l.partial[cut:]...)
			}
			return
		}
		line := data[:end]
		data = data[end+1:]
		if len(l.partial) > 0 {
			line = append(l.partial, line...)
			l.partial = l.partial[:0]
		}
		for len(line) > maxLine {
			cut := runeCut(line[:maxLine])
			fn(valid(line[:cut]))
			line = line[cut:]
		}
		fn(valid(bytes.TrimSuffix(line, []byte("\r"))))
	}
}

func (l *lineSplitter) flush(fn func(string)) {
	if len(l.partial) > 0 {
		fn(valid(l.partial))
		l.partial = nil
	}
}

func valid(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

// runeCut returns how much of b to take so that no UTF-8 character is split.
func runeCut(b []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-i:]) && len(b) > i {
				return len(b) - i
			}
			break
		}
	}
	return len(b)
}

// outputEvents turns a command's output into events of whole lines, as far as
// the result keeps it: what a command prints without end would fill the logs. A
// carriage return ends a line as well, so that progress bars show as they go.
type outputEvents struct {
	ctx     context.Context
	left    int64
	partial [3][]byte // by stream
}

func (o *outputEvents) add(stream provider.Stream, data []byte) {
	if int64(len(data)) > o.left {
		data = data[:o.left]
	}
	o.left -= int64(len(data))
	end := bytes.LastIndexAny(data, "\r\n") + 1
	if end == 0 && len(o.partial[stream])+len(data) < maxLine {
		o.partial[stream] = append(o.partial[stream], data...)
		return
	}
	if end == 0 {
		end = len(data)
	}
	if end > 0 {
		o.emit(stream, append(o.partial[stream], data[:end]...))
	}
	o.partial[stream] = append([]byte(nil), data[end:]...)
}

func (o *outputEvents) emit(stream provider.Stream, data []byte) {
	event.Emit(o.ctx, event.Event{Type: event.Output, Stream: stream.String(), Text: valid(data)})
}

// flush sends what is left of the last line.
func (o *outputEvents) flush() {
	for _, stream := range []provider.Stream{provider.Stdout, provider.Stderr} {
		if len(o.partial[stream]) > 0 {
			o.emit(stream, o.partial[stream])
		}
	}
}

func newResult(res *provider.Result) *script.Record {
	var code starlark.Value = starlark.None
	if res.Signal == "" && res.ExitCode >= 0 {
		code = starlark.MakeInt(res.ExitCode)
	}
	return script.NewRecord("result", starlark.StringDict{
		"exit_code": code,
		"ok":        starlark.Bool(res.OK()),
		"stdout":    starlark.String(res.Stdout),
		"stderr":    starlark.String(res.Stderr),
		"signal":    starlark.String(res.Signal),
		"timed_out": starlark.Bool(res.TimedOut),
		"oom":       starlark.Bool(res.OutOfMemory),
		"truncated": starlark.Bool(res.Truncated),
		"duration":  startime.Duration(res.Duration),
	}, func() string {
		return fmt.Sprintf("<result: %s, stdout %d bytes, stderr %d bytes>", ending(res), len(res.Stdout), len(res.Stderr))
	})
}

// ending says in a few words how a command ended.
func ending(res *provider.Result) string {
	var how string
	switch {
	case res.TimedOut:
		how = fmt.Sprintf("timed out after %v", res.Duration.Round(time.Millisecond))
	case res.Signal != "":
		how = "killed by " + res.Signal
	default:
		how = fmt.Sprintf("exit code %d", res.ExitCode)
	}
	if res.OutOfMemory {
		how += ", out of memory"
	}
	return how
}

func resultAttrs(res *provider.Result) map[string]any {
	if res == nil {
		return nil
	}
	attrs := map[string]any{"exit_code": res.ExitCode}
	for name, set := range map[string]bool{"timed_out": res.TimedOut, "oom": res.OutOfMemory, "truncated": res.Truncated} {
		if set {
			attrs[name] = true
		}
	}
	if res.Signal != "" {
		attrs["signal"] = res.Signal
	}
	return attrs
}

// failed is the error of a command that did not succeed.
func failed(sandbox string, cmd *provider.Command, res *provider.Result) error {
	f := &script.Failure{
		Kind:   script.KindCommand,
		Msg:    fmt.Sprintf("sandbox %s: %s: %s", sandbox, ending(res), oneLine(cmd.String())),
		Detail: lastOutput(res),
		Value:  newResult(res),
	}
	if res.TimedOut {
		f.Kind = script.KindTimedOut
	}
	if res.OutOfMemory {
		f.Hint = "sandbox.create(memory = ...) gives the sandbox more memory"
	}
	return f
}

// tailLines is how many lines of output a failure shows.
const tailLines = 20

func lastOutput(res *provider.Result) string {
	stderr := tail(res.Stderr, tailLines)
	stdout := tail(res.Stdout, max(tailLines-len(stderr), 5))
	var b strings.Builder
	section := func(name string, lines []string) {
		if len(lines) == 0 {
			return
		}
		fmt.Fprintf(&b, "%s:\n", name)
		for _, line := range lines {
			fmt.Fprintf(&b, "  %s\n", line)
		}
	}
	section("stdout", stdout)
	section("stderr", stderr)
	return strings.TrimSuffix(b.String(), "\n")
}

// tail returns the last n lines, each shortened to what a terminal can show.
func tail(data []byte, n int) []string {
	text := strings.TrimRight(valid(data), "\r\n")
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	if len(lines) > n {
		lines = append([]string{fmt.Sprintf("... %d more lines", len(lines)-n)}, lines[len(lines)-n:]...)
	}
	for i, line := range lines {
		line = strings.TrimSuffix(line, "\r")
		if r := []rune(line); len(r) > 500 {
			line = string(r[:500]) + " ..."
		}
		lines[i] = line
	}
	return lines
}
