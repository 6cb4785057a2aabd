package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/report"
)

// psProcesses lists the processes of a sandbox.
func (p *program) psProcesses(c *cli.Context, name string) error {
	return p.within(name, func(sb provider.Sandbox) error {
		list, err := sb.Processes(p.ctx)
		if err != nil {
			return err
		}
		switch {
		case c.Bool("json"):
			return p.stdout.json(append([]provider.ProcessInfo{}, list...)) // never null
		case c.Bool("quiet"):
			for _, proc := range list {
				fmt.Fprintln(p.stdout, proc.ID)
			}
		default:
			rows := [][]string{{"ID", "PID", "STATE", "AGE", "TAG", "COMMAND"}}
			for _, proc := range list {
				rows = append(rows, []string{proc.ID, fmt.Sprint(proc.PID), processState(proc), age(time.Since(proc.Started)), proc.Tag, title(proc.Command)})
			}
			p.stdout.table(rows)
		}
		return nil
	})
}

// processState says in a word or two what has become of a process.
func processState(p provider.ProcessInfo) string {
	switch {
	case p.Running:
		return "running"
	case p.Signal != "":
		return p.Signal
	}
	return fmt.Sprintf("exit %d", p.ExitCode)
}

// title is the first line of a command, cut to what a table has room for.
func title(command string) string {
	line, _, more := strings.Cut(strings.TrimSpace(command), "\n")
	line = strings.ReplaceAll(report.Clean(line), "\t", " ")
	if r := []rune(line); len(r) > 60 {
		line, more = string(r[:60]), true
	}
	if more {
		line += " ..."
	}
	return line
}

func (p *program) logsCommand() *cli.Command {
	return &cli.Command{
		Name:  "logs",
		Usage: "show the output of a background process",
		Description: "PROCESS is its id or tag; it can be left out where there is only one. What is kept is the\n" +
			"newest of the output. Each of the process's two outputs goes to the same one of this program.\n\n" +
			"Example: capyrun logs --follow --tail 20 cap-2f3k9s server",
		ArgsUsage: "NAME [PROCESS]",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on until the process ends"},
			&cli.IntFlag{Name: "tail", Aliases: []string{"n"}, DefaultText: "all", Usage: "begin with the last `LINES` of what is kept of each output"},
		},
		Action: p.showLogs,
	}
}

func (p *program) showLogs(c *cli.Context) error {
	args, err := p.args(c, 1, 2, "a sandbox and, where it has several, a process")
	if err != nil {
		return err
	}
	lines := math.MaxInt
	if c.IsSet("tail") {
		if lines = c.Int("tail"); lines < 0 {
			return usagef(c.Command, "--tail %d: must not be negative", lines)
		}
	}
	return p.within(args[0], func(sb provider.Sandbox) error {
		proc, err := p.processOf(c, sb, args[1:])
		if err != nil {
			return err
		}
		out, err := proc.Output(p.ctx)
		if err != nil {
			return err
		}
		if out.Truncated && lines == math.MaxInt {
			fmt.Fprintln(p.stderr, "capyrun: older output was dropped")
		}
		skip := map[provider.Stream]int{
			provider.Stdout: len(out.Stdout) - len(lastLines(out.Stdout, lines)),
			provider.Stderr: len(out.Stderr) - len(lastLines(out.Stderr, lines)),
		}
		show := func(stream provider.Stream, data []byte) {
			n := min(skip[stream], len(data))
			skip[stream] -= n
			p.outputOf(stream).Write(data[n:])
		}
		if !c.Bool("follow") {
			show(provider.Stdout, out.Stdout)
			show(provider.Stderr, out.Stderr)
			return nil
		}
		ctx, stop := p.untilReaderLeaves()
		defer stop()
		_, err = proc.Follow(ctx, func(stream provider.Stream, data []byte) {
			show(stream, data)
			if p.stdout.closed() {
				stop()
			}
		})
		if errors.Is(err, errReaderLeft) {
			return nil
		}
		return err
	})
}

// lastLines returns the last n lines of data.
func lastLines(data []byte, n int) []byte {
	end := bytes.TrimSuffix(data, []byte("\n"))
	for ; n > 0; n-- {
		i := bytes.LastIndexByte(end, '\n')
		if i < 0 {
			return data
		}
		end = end[:i]
	}
	return data[min(len(end)+1, len(data)):]
}

// processOf finds the process that the arguments name, or else the only one in
// the background.
func (p *program) processOf(c *cli.Context, sb provider.Sandbox, args []string) (provider.Process, error) {
	if len(args) > 0 {
		return sb.Process(p.ctx, args[0])
	}
	all, err := sb.Processes(p.ctx)
	if err != nil {
		return nil, err
	}
	var ids, shown []string
	for _, proc := range all {
		if proc.Background {
			ids = append(ids, proc.ID)
			shown = append(shown, fmt.Sprintf("%s (%s, %s)", proc.ID, title(proc.Command), processState(proc)))
		}
	}
	switch len(ids) {
	case 0:
		return nil, usagef(c.Command, "there is no background process in %s", sb.Name())
	case 1:
		return sb.Process(p.ctx, ids[0])
	}
	return nil, usagef(c.Command, "say which process: %s", strings.Join(shown, ", "))
}

func (p *program) sendCommand() *cli.Command {
	return &cli.Command{
		Name:  "send",
		Usage: "send standard input to a background process",
		Description: "PROCESS is its id or tag. Returns when the process has been given all of it; its input stays open\n" +
			"for more, unless --close ends it.\n\n" +
			"Example: echo reload | capyrun send cap-2f3k9s server",
		ArgsUsage: "NAME PROCESS",
		Flags:     []cli.Flag{&cli.BoolFlag{Name: "close", Usage: "end the process's input then"}},
		Action: func(c *cli.Context) error {
			args, err := p.args(c, 2, 2, "a sandbox and a process")
			if err != nil {
				return err
			}
			return p.within(args[0], func(sb provider.Sandbox) error {
				proc, err := sb.Process(p.ctx, args[1])
				if err != nil {
					return err
				}
				// A terminal's Read cannot be interrupted, so it is left behind.
				sent := make(chan error, 1)
				go func() {
					_, err := io.Copy(input{p.ctx, proc}, struct{ io.Reader }{p.stdin})
					sent <- err
				}()
				select {
				case err = <-sent:
				case <-p.ctx.Done():
					err = context.Cause(p.ctx)
				}
				if err != nil {
					return err
				}
				if c.Bool("close") {
					return proc.CloseStdin(p.ctx)
				}
				return nil
			})
		},
	}
}

// input is that of a process.
type input struct {
	ctx  context.Context
	proc provider.Process
}

func (i input) Write(b []byte) (int, error) {
	if err := i.proc.Write(i.ctx, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (p *program) waitCommand() *cli.Command {
	return &cli.Command{
		Name:  "wait",
		Usage: "wait for the end of a background process",
		Description: "PROCESS is its id or tag. The exit code is the process's; 128 plus its number where a signal\n" +
			"ended it, 124 where its own time was over or --timeout has passed, which leaves it running.\n\n" +
			"Example: capyrun wait cap-2f3k9s build",
		ArgsUsage: "NAME PROCESS",
		Flags:     []cli.Flag{&cli.DurationFlag{Name: "timeout", DefaultText: "none", Usage: "wait at most this `TIME`; 0 means no end"}},
		Action: func(c *cli.Context) error {
			args, err := p.timedArgs(c, 2, 2, "a sandbox and a process")
			if err != nil {
				return err
			}
			return p.within(args[0], func(sb provider.Sandbox) error {
				proc, err := sb.Process(p.ctx, args[1])
				if err != nil {
					return err
				}
				ctx, cancel := timeLimit(p.ctx, c.Duration("timeout"))
				defer cancel()
				res, err := proc.Wait(ctx)
				if err != nil {
					return err
				}
				return asExit(res)
			})
		},
	}
}

func (p *program) killCommand() *cli.Command {
	return &cli.Command{
		Name:  "kill",
		Usage: "end commands in a sandbox",
		Description: "Sends a signal to background processes, by id or tag; or ends, with all their descendants and\n" +
			"whoever started them, the commands that have a tag, or all. Those are dead when it returns, and\n" +
			"how many they were is written.\n\n" +
			"Examples:\n" +
			"capyrun kill cap-2f3k9s server\n" +
			"capyrun kill --signal HUP cap-2f3k9s server\n" +
			"capyrun kill --all cap-2f3k9s",
		ArgsUsage: "NAME [PROCESS...]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "signal", Aliases: []string{"s"}, DefaultText: "TERM", Usage: "`SIGNAL` for the processes; KILL ends all descendants too"},
			&cli.StringSliceFlag{Name: "tag", Usage: "end every command with this `TAG`; may be repeated"},
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "end every process in the sandbox"},
		},
		Action: p.kill,
	}
}

func (p *program) kill(c *cli.Context) error {
	args, err := p.args(c, 1, math.MaxInt, "a sandbox, and processes or --tag or --all")
	if err != nil {
		return err
	}
	procs, tags := args[1:], c.StringSlice("tag")
	ways := 0
	for _, given := range []bool{len(procs) > 0, len(tags) > 0, c.Bool("all")} {
		if given {
			ways++
		}
	}
	switch {
	case ways != 1:
		return usagef(c.Command, "give one of processes, --tag and --all")
	case c.IsSet("signal") && len(procs) == 0:
		return usagef(c.Command, "--signal is for processes; --tag and --all always kill")
	}
	for _, tag := range tags {
		if err := provider.CheckTag(tag); err != nil {
			return err
		}
	}
	return p.within(args[0], func(sb provider.Sandbox) error {
		if len(procs) > 0 {
			var errs []error
			for _, id := range procs {
				proc, err := sb.Process(p.ctx, id)
				if err == nil {
					err = proc.Signal(p.ctx, cmp.Or(c.String("signal"), "TERM"))
				}
				errs = append(errs, err)
			}
			return join(errs...)
		}
		kill := sb.KillAll
		if len(tags) > 0 {
			kill = func(ctx context.Context) (int, error) { return sb.Kill(ctx, tags...) }
		}
		n, err := kill(p.ctx)
		if err == nil {
			fmt.Fprintln(p.stdout, n)
		}
		return err
	})
}
