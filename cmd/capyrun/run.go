package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/report"
	"github.com/capybara-hq/capyrun/starlib"
)

var keepPolicies = map[string]starlib.KeepPolicy{
	"never":      starlib.KeepNever,
	"on-failure": starlib.KeepOnFailure,
	"always":     starlib.KeepAlways,
}

// maxWarm bounds what a typing mistake can start.
const maxWarm = 100

func (p *program) runCommand() *cli.Command {
	return &cli.Command{
		Name:  "run",
		Usage: "run a workflow",
		Description: "Runs the file's top level and then its function main, whose signature says which parameters\n" +
			"there are. What main returns is written to stdout, everything else to stderr. The sandboxes\n" +
			"that the run created are destroyed when it ends, however it ends.\n\n" +
			"Examples:\n" +
			"capyrun run build.star -p ref=main -p jobs=4\n" +
			"capyrun run deploy.star --timeout 10m --output json -- extra arguments",
		ArgsUsage: "FILE [-- ARGUMENT...]   (FILE - reads standard input)",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "param", Aliases: []string{"p"}, Usage: "parameter of main, `NAME=VALUE`; may be repeated"},
			&cli.StringFlag{Name: "params-file", Usage: "JSON object of parameters in `FILE`; -p overrides them"},
			&cli.DurationFlag{Name: "timeout", DefaultText: "none", Usage: "stop the run after this `TIME`, such as 10m; 0 means none"},
			&cli.DurationFlag{Name: "exec-timeout", Value: 5 * time.Minute, Usage: "`TIME` for a command that the workflow gives none; 0 means no end"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "text", Usage: "`FORM` of the result: text, json or none"},
			&cli.StringFlag{Name: "events", Usage: "write everything that happens to `FILE`, as lines of JSON"},
			&cli.StringFlag{Name: "keep", Value: "never", Usage: "`WHEN` to leave the run's sandboxes: never, on-failure or always"},
			&cli.IntFlag{Name: "warm", DefaultText: "none", Usage: "start this `NUMBER` of sandboxes ahead of each kind that the workflow creates"},
			&cli.StringSliceFlag{Name: "allow-read", Usage: "`DIR` that the workflow may read beside its own; may be repeated"},
			&cli.StringSliceFlag{Name: "allow-env", Usage: "`NAME` of a variable that the workflow may read; may be repeated"},
			&cli.StringFlag{Name: "out", Usage: "`DIR` that the workflow may write to"},
		},
		Action: p.runWorkflow,
	}
}

func (p *program) runWorkflow(c *cli.Context) (err error) {
	if c.NArg() != 1 {
		msg := "give one workflow file"
		if c.NArg() > 1 {
			msg += fmt.Sprintf(", not also %q; arguments for the workflow itself follow --", c.Args().Get(1))
		}
		return usagef(c.Command, "%s", msg)
	}
	write, err := resultWriter(c)
	if err != nil {
		return err
	}
	if err := noNegative(c, "timeout", "exec-timeout"); err != nil {
		return err
	}
	keep, ok := keepPolicies[c.String("keep")]
	if !ok {
		return usagef(c.Command, "--keep %s: must be never, on-failure or always", c.String("keep"))
	}
	warm := c.Int("warm")
	if warm < 0 || warm > maxWarm {
		return usagef(c.Command, "--warm %d: must be from 0 to %d", warm, maxWarm)
	}
	params, err := readParams(c)
	if err != nil {
		return err
	}

	lazy := &lazyProvider{config: p.settings.docker, warm: warm}
	defer func() { err = join(err, lazy.Close()) }()
	events, closeEvents, err := p.events(c.String("events"))
	if err != nil {
		return err
	}
	execTimeout := c.Duration("exec-timeout")
	if execTimeout == 0 {
		execTimeout = -1 // none, where 0 is the default
	}
	rt := starlib.New(lazy, starlib.Options{
		Events:      events,
		Args:        p.tail,
		AllowEnv:    c.StringSlice("allow-env"),
		AllowRead:   c.StringSlice("allow-read"),
		Out:         c.String("out"),
		ExecTimeout: execTimeout,
		Keep:        keep,
	})
	ctx := p.ctx
	if d := c.Duration("timeout"); d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d, timeoutError{fmt.Sprintf("the run timed out after %v", d)})
		defer cancel()
	}
	var res *starlib.Result
	if file := c.Args().First(); file != "-" {
		res, err = rt.RunFile(ctx, file, params)
	} else if src, readErr := io.ReadAll(p.stdin); readErr != nil {
		err = fmt.Errorf("read the workflow from standard input: %w", readErr)
	} else {
		res, err = rt.RunSource(ctx, "stdin", src, params)
	}
	err = join(err, closeEvents())
	if res != nil {
		err = join(err, write(p.stdout, res.Value))
	}
	return err
}

// events returns where the run's events go, and what to call when it is over.
func (p *program) events(file string) (event.Sink, func() error, error) {
	var sinks []event.Sink
	closeFile := func() error { return nil }
	if file != "" {
		f, err := os.Create(file)
		if err != nil {
			return nil, nil, &configError{"--events", err}
		}
		lines := report.NewJSONLines(f)
		sinks = append(sinks, lines)
		closeFile = func() error {
			if err := errors.Join(lines.Err(), f.Close()); err != nil {
				return &writeError{"--events " + file, err}
			}
			return nil
		}
	}
	display, closeDisplay := p.display()
	sinks = append(sinks, display, p.cleanupWatch())
	return event.Multi(sinks...), func() error {
		closeDisplay()
		return closeFile()
	}, nil
}

// cleanupWatch returns a sink that tells the signals what the cleanup has come to.
func (p *program) cleanupWatch() event.Sink {
	var cleanup atomic.Int64 // its span
	return event.Func(func(e event.Event) {
		switch {
		case e.Type == event.Start && e.Kind == event.KindCleanup:
			cleanup.Store(int64(e.Span))
		case e.Type == event.Progress && e.Span == event.SpanID(cleanup.Load()):
			p.signals.waitsFor(e.Text)
		}
	})
}

// logs reports whether the log level lets an event through.
func (p *program) logs(e event.Event) bool {
	if e.Type != event.Log {
		return true
	}
	return p.settings.logLevel == "info" || p.settings.logLevel == "warning" && e.Level == event.Warning
}

// readParams joins the parameters of a file and of the command line.
func readParams(c *cli.Context) (starlib.Params, error) {
	params := starlib.Params{}
	if file := c.String("params-file"); file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, &configError{"--params-file", err}
		}
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.UseNumber() // large whole numbers stay exact
		if err := dec.Decode(&params); err != nil {
			return nil, &configError{"--params-file " + file, fmt.Errorf("want a JSON object: %w", err)}
		}
		if _, err := dec.Token(); err != io.EOF {
			return nil, &configError{"--params-file " + file, errors.New("want one JSON object and nothing after it")}
		}
	}
	given, err := starlib.ParseParams(c.StringSlice("param"))
	if err != nil {
		return nil, usagef(c.Command, "%v", err)
	}
	for name, value := range given {
		params[name] = value
	}
	return params, nil
}

// resultWriter returns what writes the result as --output says.
func resultWriter(c *cli.Context) (func(*output, any) error, error) {
	switch c.String("output") {
	case "none":
		return func(*output, any) error { return nil }, nil
	case "json":
		return func(o *output, v any) error {
			b, err := marshal(v, "")
			o.Write(b)
			return err
		}, nil
	case "text":
		return writeText, nil
	}
	return nil, usagef(c.Command, "--output %s: must be text, json or none", c.String("output"))
}

// writeText writes a result for people: a string as it is, nothing for None,
// JSON for the rest.
func writeText(o *output, v any) error {
	switch v := v.(type) {
	case nil:
		return nil
	case string:
		if o.terminal() {
			v = report.Clean(v) // it may come from a sandbox
		}
		if !strings.HasSuffix(v, "\n") {
			v += "\n"
		}
		io.WriteString(o, v)
		return nil
	}
	return o.json(v)
}

// terminal reports whether a person looks at it directly.
func (o *output) terminal() bool {
	f, ok := o.w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
