package main

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/capybara-hq/capyrun/provider"
)

func (p *program) shellCommand() *cli.Command {
	return &cli.Command{
		Name:  "shell",
		Usage: "work in a sandbox by hand",
		Description: "Gives this terminal to a shell in the sandbox, bash where the image has it, else sh, or to COMMAND.\n" +
			"Every key goes there, Ctrl-C too. Where standard input is no terminal the shell reads commands\n" +
			"from it. The exit code is that of the shell, as for 'capyrun exec'.\n\n" +
			"Examples:\n" +
			"capyrun shell cap-2f3k9s\n" +
			"capyrun shell cap-2f3k9s vi notes.txt",
		ArgsUsage: "NAME [COMMAND [ARGUMENT...]]",
		Action: func(c *cli.Context) error {
			args := append(c.Args().Slice(), p.tail...)
			if len(args) == 0 || p.tail != nil && c.NArg() != 1 {
				return usagef(c.Command, "give one sandbox, and a command if it is not to be a shell")
			}
			terminal := term.IsTerminal(int(p.stdin.Fd()))
			cmd := provider.Command{Args: args[1:]}
			if len(cmd.Args) == 0 {
				option := ""
				if terminal {
					option = " -i"
				}
				// What runs this line is the shell that there is.
				cmd.Shell = fmt.Sprintf(`if [ -n "$BASH_VERSION" ]; then exec bash%[1]s; else exec sh%[1]s; fi`, option)
			}
			if err := cmd.Validate(); err != nil {
				return err
			}
			return p.within(args[0], func(sb provider.Sandbox) error {
				if terminal {
					return p.onTerminal(sb, cmd)
				}
				return p.stream(sb, cmd)
			})
		},
	}
}

// onTerminal runs a command on a terminal of its own. Where standard input is a
// terminal the two are made one: all keys go to the command, the size is kept
// the same, and what it was set to comes back at the end.
func (p *program) onTerminal(sb provider.Sandbox, cmd provider.Command) error {
	if cmd.Env == nil {
		cmd.Env = map[string]string{}
	}
	if _, set := cmd.Env["TERM"]; !set && p.getenv("TERM") != "" {
		cmd.Env["TERM"] = p.getenv("TERM")
	}
	cmd.Stdin, cmd.Terminal = p.stdin, &provider.Terminal{}
	restore := func() {}
	if fd := int(p.stdin.Fd()); term.IsTerminal(fd) {
		before, err := term.MakeRaw(fd)
		if err != nil {
			return fmt.Errorf("set up the terminal: %w", err)
		}
		restore = sync.OnceFunc(func() { term.Restore(fd, before) })
		defer restore()
		p.signals.display(func(text string) { fmt.Fprintf(p.stderr, "%s\r\n", text) }, restore)
		sizes, stop := watchSize(fd)
		defer stop()
		cmd.Terminal.Size, cmd.Terminal.Resize = windowSize(fd), sizes
	}
	res, err := p.attach(sb, cmd)
	restore() // before anything is said
	return p.ended(sb, cmd, res, err)
}

func windowSize(fd int) provider.WindowSize {
	columns, rows, err := term.GetSize(fd)
	if err != nil {
		return provider.WindowSize{}
	}
	return provider.WindowSize{Rows: uint16(rows), Columns: uint16(columns)}
}

// watchSize returns the sizes that the terminal gets, until stop is called.
func watchSize(fd int) (sizes <-chan provider.WindowSize, stop func()) {
	changed := make(chan os.Signal, 1) // one is enough: the size is asked for after it
	signal.Notify(changed, syscall.SIGWINCH)
	out, done := make(chan provider.WindowSize), make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-changed:
			case <-done:
				return
			}
			select {
			case out <- windowSize(fd):
			case <-done:
				return
			}
		}
	})
	return out, func() {
		signal.Stop(changed)
		close(done)
		watching.Wait()
	}
}
