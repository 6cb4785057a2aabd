package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/capybara-hq/capyrun/provider"
)

var jsonFlag = &cli.BoolFlag{Name: "json", Usage: "write JSON"}

func (p *program) psCommand() *cli.Command {
	return &cli.Command{
		Name:  "ps",
		Usage: "list the sandboxes on the engine, or the processes in one",
		Description: "Lists every sandbox of capyrun, whoever created it. With a name it lists the commands that run\n" +
			"in that sandbox and the background ones that have ended.\n\n" +
			"Examples:\n" +
			"capyrun ps --json\n" +
			"capyrun ps cap-2f3k9s",
		ArgsUsage: "[NAME]",
		Flags:     []cli.Flag{jsonFlag, &cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "write names only, of processes the ids"}},
		Action: func(c *cli.Context) error {
			args, err := p.args(c, 0, 1, "at most one sandbox")
			if err != nil {
				return err
			}
			if len(args) == 1 {
				return p.psProcesses(c, args[0])
			}
			pr, err := p.connect()
			if err != nil {
				return err
			}
			defer pr.Close()
			list, err := pr.List(p.ctx)
			if err != nil {
				return err
			}
			switch {
			case c.Bool("json"):
				return p.stdout.json(append([]provider.Info{}, list...)) // never null
			case c.Bool("quiet"):
				for _, s := range list {
					fmt.Fprintln(p.stdout, s.Name)
				}
			default:
				rows := [][]string{{"NAME", "STATE", "IMAGE", "EGRESS", "AGE", "OWNER"}}
				for _, s := range list {
					rows = append(rows, []string{s.Name, string(s.State), s.Image, string(s.Egress), age(time.Since(s.Created)), owner(s)})
				}
				p.stdout.table(rows)
			}
			return nil
		},
	}
}

// age is a duration in its largest unit.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return strconv.Itoa(int(max(d, 0).Seconds())) + "s"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h"
	}
	return strconv.Itoa(int(d.Hours()/24)) + "d"
}

// owner tells who holds a sandbox, and whether anybody still does.
func owner(s provider.Info) string {
	who := fmt.Sprintf("%s/%d", s.Owner.Host, s.Owner.PID)
	switch {
	case s.Keep:
		return who + " (kept)"
	case !s.Expires.IsZero():
		return fmt.Sprintf("%s (until %s)", who, s.Expires.Local().Format("2006-01-02 15:04"))
	case !s.OwnerAlive:
		return who + " (ended)"
	}
	return who
}

func (p *program) rmCommand() *cli.Command {
	return &cli.Command{
		Name:        "rm",
		Usage:       "destroy sandboxes",
		Description: "Destroys the sandboxes and their files, whoever holds them. Writes the names of those destroyed.\n\nExample: capyrun rm cap-2f3k9s",
		ArgsUsage:   "NAME...",
		Flags:       []cli.Flag{&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "all sandboxes, also those that are in use"}},
		Action: func(c *cli.Context) error {
			names := append(c.Args().Slice(), p.tail...)
			if (len(names) > 0) == c.Bool("all") {
				return usagef(c.Command, "give names, or --all")
			}
			pr, err := p.connect()
			if err != nil {
				return err
			}
			defer pr.Close()
			if c.Bool("all") {
				list, err := pr.List(p.ctx)
				if err != nil {
					return err
				}
				for _, s := range list {
					names = append(names, s.Name)
				}
			}
			var errs []error
			for _, name := range names {
				err := pr.Destroy(p.ctx, name)
				if c.Bool("all") && errors.Is(err, provider.ErrGone) {
					continue // somebody else was quicker
				}
				if err == nil {
					fmt.Fprintln(p.stdout, name)
				}
				errs = append(errs, nameGone(name, err))
			}
			return join(errs...)
		},
	}
}

func (p *program) gcCommand() *cli.Command {
	return &cli.Command{
		Name:  "gc",
		Usage: "remove what runs that died have left",
		Description: "Removes every sandbox, network and volume whose owner has ended or whose time to live has\n" +
			"passed, and nothing that is in use or kept. Writes what was removed.\n\nExample: capyrun gc",
		ArgsUsage: " ",
		Flags:     []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			if err := p.noArgs(c); err != nil {
				return err
			}
			pr, err := p.connect()
			if err != nil {
				return err
			}
			defer pr.Close()
			removed, err := pr.Sweep(p.ctx)
			if c.Bool("json") {
				return join(p.stdout.json(removed), err)
			}
			for _, part := range []struct {
				what  string
				names []string
			}{{"sandbox", removed.Sandboxes}, {"network", removed.Networks}, {"volume", removed.Volumes}} {
				for _, name := range part.names {
					fmt.Fprintln(p.stdout, part.what, name)
				}
			}
			if err == nil && removed.Empty() {
				fmt.Fprintln(p.stderr, "nothing to remove")
			}
			return err
		},
	}
}
