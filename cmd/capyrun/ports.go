package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/provider/ports"
	"github.com/capybara-hq/capyrun/report"
)

// parsePort reads the number of a port.
func parsePort(c *cli.Context, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || ports.Check(n) != nil {
		return 0, usagef(c.Command, "port %q: must be a whole number from 1 to 65535", text)
	}
	return n, nil
}

// portArgs returns the arguments, at most so many, of a command with a timeout
// whose second one is a port, and the port.
func (p *program) portArgs(c *cli.Context, most int, usage string) ([]string, int, error) {
	args, err := p.timedArgs(c, 2, most, usage)
	if err != nil {
		return nil, 0, err
	}
	port, err := parsePort(c, args[1])
	return args, port, err
}

func (p *program) portForwardCommand() *cli.Command {
	return &cli.Command{
		Name:  "port-forward",
		Usage: "give ports of a sandbox addresses on this host",
		Description: "Forwards connections to 127.0.0.1 until it is interrupted or the sandbox is gone. It needs no\n" +
			"network in the sandbox. HOST is the port on this host, by default the same one; 0 takes a free\n" +
			"one. Writes the addresses.\n\n" +
			"Examples:\n" +
			"capyrun port-forward cap-2f3k9s 8080\n" +
			"capyrun port-forward cap-2f3k9s 18080:80 0:5432",
		ArgsUsage: "NAME [HOST:]PORT...",
		Action:    p.portForward,
	}
}

func (p *program) portForward(c *cli.Context) error {
	args, err := p.args(c, 2, math.MaxInt, "a sandbox and ports")
	if err != nil {
		return err
	}
	type pair struct{ host, inside int }
	var pairs []pair
	for _, arg := range args[1:] {
		host, inside, both := strings.Cut(arg, ":")
		if !both {
			inside = host
		}
		var pr pair
		if pr.inside, err = parsePort(c, inside); err != nil {
			return err
		}
		if host != "0" && host != "" {
			if pr.host, err = parsePort(c, host); err != nil {
				return err
			}
		}
		pairs = append(pairs, pr)
	}
	return p.within(args[0], func(sb provider.Sandbox) error {
		ctx, cancel := context.WithCancelCause(p.ctx)
		defer cancel(nil)
		for _, pair := range pairs {
			address := net.JoinHostPort("127.0.0.1", strconv.Itoa(pair.host))
			f, err := ports.Listen(sb, pair.inside, address, func(err error) {
				if errors.Is(err, provider.ErrGone) {
					cancel(&goneError{args[0], err})
					return
				}
				fmt.Fprintf(p.stderr, "capyrun: %v\n", report.Clean(err.Error()))
			})
			if err != nil {
				return err
			}
			defer f.Close()
			fmt.Fprintf(p.stdout, "%s -> %d\n", f.Addr(), pair.inside)
		}
		for {
			select {
			case <-time.After(lookInterval):
				if _, err := sb.Info(ctx); errors.Is(err, provider.ErrGone) {
					cancel(&goneError{args[0], err})
				}
			case <-ctx.Done():
				return asked(ctx)
			}
		}
	})
}

// lookInterval is how often port-forward looks whether the sandbox is still there.
const lookInterval = 2 * time.Second

// asked is the end of a command that goes on until it is interrupted: it has
// nothing to add.
func asked(ctx context.Context) error {
	cause := context.Cause(ctx)
	var sig signalError
	if errors.As(cause, &sig) {
		return exitStatus(sig.exitCode())
	}
	return cause
}

func (p *program) waitPortCommand() *cli.Command {
	return &cli.Command{
		Name:  "wait-port",
		Usage: "wait until a server in a sandbox listens",
		Description: "Returns when something in the sandbox accepts connections on the TCP port; the exit code is 124\n" +
			"when --timeout has passed.\n\nExample: capyrun wait-port cap-2f3k9s 8080",
		ArgsUsage: "NAME PORT",
		Flags:     []cli.Flag{portTimeoutFlag},
		Action: func(c *cli.Context) error {
			args, port, err := p.portArgs(c, 2, "a sandbox and a port")
			if err != nil {
				return err
			}
			return p.within(args[0], func(sb provider.Sandbox) error {
				ctx, cancel := timeLimit(p.ctx, c.Duration("timeout"))
				defer cancel()
				err := ports.Wait(ctx, sb, port)
				if err != nil && ctx.Err() != nil && p.ctx.Err() == nil {
					if hint := ports.EndedHint(p.ctx, sb); hint != "" {
						err = fmt.Errorf("%w (%s)", err, hint)
					}
				}
				return err
			})
		},
	}
}

// portTimeoutFlag has the default of the script's functions.
var portTimeoutFlag = &cli.DurationFlag{Name: "timeout", Value: 30 * time.Second, Usage: "give up after this `TIME`; 0 means no end"}

func (p *program) httpCommand() *cli.Command {
	return &cli.Command{
		Name:  "http",
		Usage: "ask a server in a sandbox",
		Description: "Sends an HTTP request and writes the body of the answer, whatever its status. It needs no network\n" +
			"in the sandbox. Redirects are not followed.\n\n" +
			"Examples:\n" +
			"capyrun http cap-2f3k9s 8080 /index.html\n" +
			"capyrun http -X PUT -H 'Content-Type: application/json' -d @data.json cap-2f3k9s 8080 /items/1",
		ArgsUsage: "NAME PORT [PATH]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "request", Aliases: []string{"X"}, DefaultText: "GET, POST with --data", Usage: "`METHOD` of the request"},
			&cli.StringSliceFlag{Name: "header", Aliases: []string{"H"}, Usage: "header of the request, `'NAME: VALUE'`; may be repeated"},
			&cli.StringFlag{Name: "data", Aliases: []string{"d"}, Usage: "`BODY` of the request; @FILE takes it from a file, @- from standard input"},
			&cli.BoolFlag{Name: "include", Aliases: []string{"i"}, Usage: "write the status and the headers of the answer before its body"},
			&cli.BoolFlag{Name: "fail", Aliases: []string{"f"}, Usage: "exit with 1 where the status is 400 or more"},
			portTimeoutFlag,
		},
		Action: p.http,
	}
}

func (p *program) http(c *cli.Context) error {
	args, port, err := p.portArgs(c, 3, "a sandbox, a port and perhaps a path")
	if err != nil {
		return err
	}
	path := "/"
	if len(args) > 2 {
		path = args[2]
	}
	method := c.String("request")
	if method == "" {
		if method = "GET"; c.IsSet("data") {
			method = "POST"
		}
	}
	body, err := p.requestBody(c)
	if err != nil {
		return err
	}
	ctx, cancel := timeLimit(p.ctx, c.Duration("timeout"))
	defer cancel()
	req, err := ports.NewRequest(ctx, method, port, path, body)
	if err != nil {
		return err
	}
	for _, line := range c.StringSlice("header") {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return usagef(c.Command, "--header %q: want 'NAME: VALUE'", line)
		}
		if value = strings.TrimSpace(value); strings.EqualFold(name, "Host") {
			req.Host = value
		} else if strings.EqualFold(name, "User-Agent") {
			req.Header.Set(name, value)
		} else {
			req.Header.Add(name, value)
		}
	}
	return p.within(args[0], func(sb provider.Sandbox) error {
		resp, err := ports.Do(sb, req)
		if errors.Is(err, syscall.ECONNREFUSED) {
			err = fmt.Errorf("%w (`capyrun wait-port %s %d` waits for one)", err, sb.Name(), port)
		}
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if c.Bool("include") {
			fmt.Fprintf(p.stdout, "%s %s\n", resp.Proto, resp.Status)
			for _, name := range slices.Sorted(maps.Keys(resp.Header)) {
				for _, value := range resp.Header[name] {
					fmt.Fprintf(p.stdout, "%s: %s\n", name, value)
				}
			}
			fmt.Fprintln(p.stdout)
		}
		if _, err := io.Copy(whileRead{p.stdout}, resp.Body); err != nil && !errors.Is(err, errReaderLeft) {
			return fmt.Errorf("sandbox %s: the answer's body: %w", sb.Name(), err)
		}
		if c.Bool("fail") && resp.StatusCode >= 400 {
			fmt.Fprintf(p.stderr, "capyrun: sandbox %s: the status is %s\n", sb.Name(), report.Clean(resp.Status))
			return exitStatus(exitFailed)
		}
		return nil
	})
}

// requestBody opens what --data says.
func (p *program) requestBody(c *cli.Context) (io.Reader, error) {
	name, file := strings.CutPrefix(c.String("data"), "@")
	switch {
	case !file:
		return strings.NewReader(name), nil
	case name == "-":
		return bufio.NewReader(p.stdin), nil
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, usagef(c.Command, "--data: %v", err)
	}
	return strings.NewReader(string(data)), nil
}

// whileRead fails once nobody reads the output any more, so that what produces
// it ends.
type whileRead struct{ o *output }

func (w whileRead) Write(b []byte) (int, error) {
	n, err := w.o.Write(b)
	if w.o.closed() {
		return n, errReaderLeft
	}
	return n, err
}
