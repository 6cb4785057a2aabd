package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/capybara-hq/capyrun/provider"
)

func (p *program) execCommand() *cli.Command {
	return &cli.Command{
		Name:  "exec",
		Usage: "run a command in a sandbox",
		Description: "Streams the output as it comes. Standard input is passed on unless it is a terminal.\n" +
			"The exit code is the command's; 128 plus its number where a signal ended it, 124 where\n" +
			"--timeout did, 127 where it could not be started.\n\n" +
			"Examples:\n" +
			"capyrun exec cap-2f3k9s -- ls -l /workspace\n" +
			"capyrun exec -c 'make 2>&1 | tail' cap-2f3k9s",
		ArgsUsage: "NAME [--] COMMAND [ARGUMENT...]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "command", Aliases: []string{"c"}, Usage: "a command `LINE` for the sandbox's shell instead of COMMAND"},
			&cli.DurationFlag{Name: "timeout", DefaultText: "none", Usage: "end the command and all its processes after this `TIME`, such as 90s; 0 means none"},
			&cli.StringSliceFlag{Name: "env", Aliases: []string{"e"}, Usage: "set a variable, `NAME=VALUE`; may be repeated"},
			&cli.StringFlag{Name: "cwd", Usage: "working `DIRECTORY` (default: /workspace)"},
			&cli.StringFlag{Name: "tag", Usage: "`TAG` by which the command can be found and killed"},
			&cli.BoolFlag{Name: "tty", Aliases: []string{"t"}, Usage: "give the command a terminal; this program's own is passed on to it"},
			&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "leave it running in the background and write its id"},
		},
		Action: p.exec,
	}
}

func (p *program) exec(c *cli.Context) error {
	args := append(c.Args().Slice(), p.tail...)
	if len(args) == 0 || p.tail != nil && c.NArg() != 1 {
		return usagef(c.Command, "give one sandbox and a command")
	}
	if err := noNegative(c, "timeout"); err != nil {
		return err
	}
	name, args := args[0], args[1:]
	if (len(args) > 0) == c.IsSet("command") {
		return usagef(c.Command, "give a command, or a line for the shell with -c")
	}
	if c.Bool("tty") && c.Bool("detach") {
		return usagef(c.Command, "--tty and --detach exclude each other: a background process has no terminal")
	}
	cmd := provider.Command{
		Shell:   c.String("command"),
		Args:    args,
		Dir:     c.String("cwd"),
		Tag:     c.String("tag"),
		Timeout: c.Duration("timeout"),
	}
	var err error
	if cmd.Env, err = pairs(c, "env"); err != nil {
		return err
	}
	if err := cmd.Validate(); err != nil {
		return err
	}
	return p.within(name, func(sb provider.Sandbox) error {
		switch {
		case c.Bool("tty"):
			return p.onTerminal(sb, cmd)
		case !c.Bool("detach"):
			return p.stream(sb, cmd)
		}
		proc, err := sb.Start(p.ctx, cmd)
		if err == nil {
			fmt.Fprintln(p.stdout, proc.ID())
		}
		return err
	})
}

// pairs returns what a flag that takes NAME=VALUE was given.
func pairs(c *cli.Context, flag string) (map[string]string, error) {
	out := map[string]string{}
	for _, pair := range c.StringSlice(flag) {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, usagef(c.Command, "--%s %s: want NAME=VALUE", flag, pair)
		}
		out[name] = value
	}
	return out, nil
}

// errReaderLeft stops a command whose output nobody reads any more, as SIGPIPE
// would stop it outside of a sandbox.
var errReaderLeft = errors.New("nobody reads stdout any more")

// untilReaderLeaves returns the program's context and what ends it with
// [errReaderLeft].
func (p *program) untilReaderLeaves() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(p.ctx)
	return ctx, func() { cancel(errReaderLeft) }
}

// outputOf is where a stream of a command goes.
func (p *program) outputOf(stream provider.Stream) io.Writer {
	if stream == provider.Stderr {
		return p.stderr
	}
	return p.stdout
}

// stream runs a command with this program's standard streams.
func (p *program) stream(sb provider.Sandbox, cmd provider.Command) error {
	if !term.IsTerminal(int(p.stdin.Fd())) {
		cmd.Stdin = p.stdin
	}
	res, err := p.attach(sb, cmd)
	return p.ended(sb, cmd, res, err)
}

// attach runs a command whose output comes out of this program.
func (p *program) attach(sb provider.Sandbox, cmd provider.Command) (*provider.Result, error) {
	cmd.MaxOutput = 1 // it is streamed, not kept
	ctx, stop := p.untilReaderLeaves()
	defer stop()
	cmd.OnOutput = func(stream provider.Stream, data []byte) {
		p.outputOf(stream).Write(data)
		if p.stdout.closed() {
			stop()
		}
	}
	return sb.Exec(ctx, cmd)
}

// ended makes the end of this program of that of a command.
func (p *program) ended(sb provider.Sandbox, cmd provider.Command, res *provider.Result, err error) error {
	switch {
	case errors.Is(err, errReaderLeft):
		return exitStatus(128 + int(syscall.SIGPIPE))
	case err != nil:
		return err
	case res.TimedOut:
		fmt.Fprintf(p.stderr, "capyrun: sandbox %s: timed out after %v: %s\n", sb.Name(), cmd.Timeout, cmd.String())
	}
	return asExit(res)
}

// asExit ends this program as a command ended.
func asExit(res *provider.Result) error {
	switch {
	case res.TimedOut:
		return exitStatus(exitTimedOut)
	case res.Signal != "":
		return exitStatus(128 + int(unix.SignalNum(res.Signal)))
	case res.ExitCode != 0:
		return exitStatus(res.ExitCode)
	}
	return nil
}
