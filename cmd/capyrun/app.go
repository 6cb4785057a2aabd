package main

import (
	"context"
	"os"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/report"
)

// program is one invocation.
type program struct {
	stdin   *os.File
	stdout  *output
	stderr  *os.File
	environ []string

	ctx      context.Context // ends at the first signal
	settings *settings
	tail     []string // the arguments after "--"; nil: there was no "--"
	signals  *signals
}

// rawCommands take somebody else's command line after their first argument.
var rawCommands = map[string]bool{"exec": true, "shell": true}

// run carries a command line out and returns the exit code.
func (p *program) run(ctx context.Context, args []string) int {
	app := p.app()
	arranged, tail, err := arrange(app, rawCommands, args)
	if err == nil {
		p.tail = tail
		p.signals = watchSignals(ctx, p.stderr)
		defer p.signals.stop()
		p.ctx = p.signals.ctx
		err = app.RunContext(p.ctx, append([]string{app.Name}, arranged...))
	}
	return p.finish(err)
}

func (p *program) app() *cli.App {
	usage := func(c *cli.Context, err error, _ bool) error {
		return usagef(c.Command, "%v", err)
	}
	app := &cli.App{
		Name:     "capyrun",
		HelpName: "capyrun",
		Usage:    "run Starlark workflows in Docker sandboxes",
		Description: "Every setting can stand in capyrun.toml, in the environment as CAPYRUN_NAME and on the\n" +
			"command line as --name; the later overrides the earlier.\n\n" +
			"Exit codes: 0 success; 1 the workflow failed; 2 it could not be run as asked; 3 the\n" +
			"environment is at fault; 124 timed out; 130 interrupted; 143 terminated.\n\n" +
			"Example: capyrun run build.star -p ref=main",
		Flags:                     globalFlags(),
		Writer:                    p.stdout,
		ErrWriter:                 p.stderr,
		Version:                   readVersion().Version,
		DisableSliceFlagSeparator: true, // a value may hold a comma
		OnUsageError:              usage,
		ExitErrHandler:            func(*cli.Context, error) {}, // finish does
		Before: func(c *cli.Context) (err error) {
			p.settings, err = loadSettings(c, p.environ)
			return err
		},
		Commands: []*cli.Command{
			p.runCommand(),
			p.createCommand(),
			p.psCommand(),
			p.execCommand(),
			p.shellCommand(),
			p.logsCommand(),
			p.sendCommand(),
			p.waitCommand(),
			p.killCommand(),
			p.cpCommand(),
			p.filesCommand(),
			p.httpCommand(),
			p.waitPortCommand(),
			p.portForwardCommand(),
			p.statsCommand(),
			p.suspendCommand(),
			p.resumeCommand(),
			p.rmCommand(),
			p.gcCommand(),
			p.doctorCommand(),
			p.versionCommand(),
		},
	}
	for _, c := range app.Commands {
		c.OnUsageError, c.HideHelpCommand = usage, true
		for _, sub := range c.Subcommands {
			sub.OnUsageError, sub.HideHelpCommand, sub.HelpName = usage, true, "capyrun "+c.Name+" "+sub.Name
		}
	}
	cli.VersionPrinter = func(*cli.Context) { p.writeVersion() }
	app.Setup() // adds --version and the command help, which arrange must know
	return app
}

// connect opens the provider. Close it.
func (p *program) connect() (*docker.Provider, error) {
	return docker.New(p.ctx, p.settings.docker)
}

// within opens a sandbox and calls fn with it.
func (p *program) within(name string, fn func(provider.Sandbox) error) error {
	pr, err := p.connect()
	if err != nil {
		return err
	}
	defer pr.Close()
	sb, err := pr.Open(p.ctx, name)
	if err != nil {
		return nameGone(name, err)
	}
	return fn(sb)
}

// args returns the arguments, of which there must be from least to most; usage
// says what they are.
func (p *program) args(c *cli.Context, least, most int, usage string) ([]string, error) {
	args := append(c.Args().Slice(), p.tail...)
	switch {
	case len(args) < least:
		return nil, usagef(c.Command, "give %s", usage)
	case len(args) > most:
		return nil, usagef(c.Command, "give %s, not also %q", usage, args[most])
	}
	return args, nil
}

// timedArgs is args for a command with the flag --timeout.
func (p *program) timedArgs(c *cli.Context, least, most int, usage string) ([]string, error) {
	args, err := p.args(c, least, most, usage)
	if err != nil {
		return nil, err
	}
	return args, noNegative(c, "timeout")
}

// noArgs refuses arguments.
func (p *program) noArgs(c *cli.Context) error {
	if extra := append(c.Args().Slice(), p.tail...); len(extra) > 0 {
		return usagef(c.Command, "takes no arguments, got %q", extra[0])
	}
	return nil
}

// dumb reports that stderr cannot move its cursor.
func (p *program) dumb() bool {
	return !term.IsTerminal(int(p.stderr.Fd())) || p.getenv("TERM") == "dumb" || p.getenv("TERM") == ""
}

func (p *program) getenv(name string) string {
	value := ""
	for _, pair := range p.environ {
		if len(pair) > len(name) && pair[len(name)] == '=' && pair[:len(name)] == name {
			value = pair[len(name)+1:]
		}
	}
	return value
}

// color reports whether stderr gets colours.
func (p *program) color() bool {
	switch p.settings.color {
	case "always":
		return true
	case "never":
		return false
	}
	return !p.dumb() && p.getenv("NO_COLOR") == ""
}

// display starts a progress display, and returns where its events go and what
// takes it away again.
func (p *program) display() (event.Sink, func()) {
	progress := p.progress()
	p.signals.display(progress.Message, progress.Close)
	return event.Func(func(e event.Event) {
		if p.logs(e) {
			progress.Emit(e)
		}
	}), progress.Close
}

// shown runs fn with a context whose events are shown.
func (p *program) shown(fn func(ctx context.Context) error) error {
	sink, done := p.display()
	defer done()
	return fn(event.NewContext(p.ctx, sink))
}

// progress starts the progress display.
func (p *program) progress() *report.Progress {
	mode := report.Mode(p.settings.progress)
	if p.settings.progress == "auto" {
		mode = report.TTY
		if p.dumb() {
			mode = report.Plain
		}
	}
	return report.NewProgress(p.stderr, report.ProgressOptions{
		Mode:  mode,
		Color: p.color(),
		Size: func() (int, int) {
			columns, rows, err := term.GetSize(int(p.stderr.Fd()))
			if err != nil {
				return 0, 0
			}
			return columns, rows
		},
	})
}
