package provider

import (
	"io"
	"strings"
	"time"
)

// Command is a command to run in a sandbox, as uid and gid 1000, in a session
// and process group of its own.
type Command struct {
	// Shell is a command line for bash where the image has it, else sh. Exactly
	// one of Shell and Args is set.
	Shell string
	// Args is a program and its arguments, run without a shell. The program is
	// looked up in the command's PATH.
	Args []string
	// Dir is the working directory. Empty: /workspace.
	Dir string
	// Env is added to the sandbox's environment.
	Env map[string]string
	// Stdin is read to its end and then closed. Nil: empty. A command that ends
	// without reading it is no error. In [Sandbox.Start] nil leaves the input
	// open for [Process.Write].
	Stdin io.Reader
	// Tag groups commands for [Sandbox.Kill], see [CheckTag].
	Tag string
	// Timeout ends the whole process tree. 0: none.
	Timeout time.Duration
	// MaxOutput bounds the bytes kept of both streams together; the rest is read
	// and dropped. 0: [DefaultMaxOutput]. Of a background process the newest
	// bytes are kept, of a command the first.
	MaxOutput int64
	// OnOutput gets all output as it comes, also what MaxOutput drops. It is
	// called by one goroutine at a time, and a slow one slows the command down.
	// data is valid only during the call. Not used by [Sandbox.Start].
	OnOutput func(stream Stream, data []byte)
	// Terminal gives the command a pseudo-terminal as its standard streams and
	// controlling terminal; all output then comes as [Stdout]. What Stdin sends
	// is what is typed, so an interrupt is byte 3, and the end of Stdin is typed
	// as the end of input (byte 4) unless the terminal is raw, where no byte has
	// a meaning. Nil: pipes. Not accepted by [Sandbox.Start].
	Terminal *Terminal
}

// Terminal is a pseudo-terminal. TERM is taken from [Command.Env].
type Terminal struct {
	// Size is the size at the beginning. Zero: 24 rows of 80 columns.
	Size WindowSize
	// Resize gives later sizes until it is closed or the command has ended. Nil:
	// the size stays.
	Resize <-chan WindowSize
}

// WindowSize is the size of a terminal, in characters.
type WindowSize struct{ Rows, Columns uint16 }

// Validate reports the first field that cannot be accepted, as an
// [*InvalidError].
func (c *Command) Validate() error {
	switch {
	case c.Shell == "" && len(c.Args) == 0:
		return &InvalidError{Field: "cmd", Value: "", Reason: "must not be empty"}
	case c.Shell != "" && len(c.Args) > 0:
		return &InvalidError{Field: "cmd", Value: c.Shell, Reason: "is either a command line or a list, not both"}
	case c.Shell == "" && c.Args[0] == "":
		return &InvalidError{Field: "cmd", Value: "", Reason: "the program must not be empty"}
	}
	for _, arg := range append([]string{c.Shell}, c.Args...) {
		if strings.IndexByte(arg, 0) >= 0 {
			return &InvalidError{Field: "cmd", Value: arg, Reason: "must not contain NUL"}
		}
	}
	if c.Dir != "" {
		if _, err := CleanPath("cwd", c.Dir); err != nil {
			return err
		}
	}
	if err := CheckEnv(c.Env); err != nil {
		return err
	}
	if c.Tag != "" {
		if err := CheckTag(c.Tag); err != nil {
			return err
		}
	}
	if c.Timeout < 0 {
		return &InvalidError{Field: "timeout", Value: c.Timeout.String(), Reason: "must not be negative"}
	}
	if c.MaxOutput < 0 {
		return &InvalidError{Field: "max_output", Value: itoa(c.MaxOutput), Reason: "must not be negative"}
	}
	return nil
}

// ValidateStart is [Command.Validate] for [Sandbox.Start].
func (c *Command) ValidateStart() error {
	if c.Terminal != nil {
		return &InvalidError{Field: "terminal", Value: c.String(), Reason: "a background process cannot have one"}
	}
	return c.Validate()
}

// String is the command as a person would write it.
func (c *Command) String() string {
	if c.Shell != "" {
		return c.Shell
	}
	return QuoteArgs(c.Args)
}

// QuoteArgs writes a list of arguments as a POSIX shell would read it.
func QuoteArgs(args []string) string {
	var b strings.Builder
	for i, arg := range args {
		if i > 0 {
			b.WriteByte(' ')
		}
		if arg != "" && !strings.ContainsFunc(arg, needsQuote) {
			b.WriteString(arg)
			continue
		}
		b.WriteString("'" + strings.ReplaceAll(arg, "'", `'\''`) + "'")
	}
	return b.String()
}

func needsQuote(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("@%+=:,./-_", r))
}

// Stream is one of a command's two outputs.
type Stream int

const (
	Stdout Stream = 1
	Stderr Stream = 2
)

func (s Stream) String() string {
	if s == Stderr {
		return "stderr"
	}
	return "stdout"
}

// Result is how a command ended.
type Result struct {
	// ExitCode is the exit status, -1 where a signal ended the command.
	ExitCode int
	// Signal is the name of the signal that ended the command ("SIGKILL").
	Signal string
	// Stdout and Stderr are what is kept of the output. A cut never splits a
	// UTF-8 character.
	Stdout, Stderr []byte
	// Truncated says that output was dropped.
	Truncated bool
	// TimedOut says that [Command.Timeout] ended the command.
	TimedOut bool
	// OutOfMemory says that the command failed and that the kernel killed a
	// process in the sandbox for want of memory while it ran, which as far as can
	// be told was one of the command's.
	OutOfMemory bool
	// Duration is from the start of the process to its end.
	Duration time.Duration
}

// OK reports whether the command ended by itself with status 0.
func (r *Result) OK() bool { return r.ExitCode == 0 && r.Signal == "" && !r.TimedOut }

// Output is what is kept of a background process's output.
type Output struct {
	Stdout, Stderr []byte
	// Truncated says that older output was dropped.
	Truncated bool
}

// ProcessInfo describes a command that a sandbox runs or, for a background
// process, has run.
type ProcessInfo struct {
	ID         string    `json:"id"`
	PID        int       `json:"pid"`
	Command    string    `json:"command"`
	Tag        string    `json:"tag,omitempty"`
	Background bool      `json:"background"`
	Started    time.Time `json:"started"` // by the sandbox's clock
	Running    bool      `json:"running"`
	ExitCode   int       `json:"exit_code"` // -1 while running and where a signal ended it
	Signal     string    `json:"signal,omitempty"`
}
