package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/provider"
)

func (p *program) statsCommand() *cli.Command {
	return &cli.Command{
		Name:  "stats",
		Usage: "show what sandboxes use",
		Description: "Shows the sandboxes that run, or those that are named; one that does not run is not resumed for\n" +
			"it. Memory and processes are given now / at most so far / the limit.\n\n" +
			"Examples:\n" +
			"capyrun stats --watch\n" +
			"capyrun stats --json cap-2f3k9s",
		ArgsUsage: "[NAME...]",
		Flags: []cli.Flag{
			jsonFlag,
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "go on until interrupted; JSON then has one line for every sandbox"},
			&cli.DurationFlag{Name: "interval", Value: 2 * time.Second, Usage: "`TIME` between two looks with --watch"},
		},
		Action: p.stats,
	}
}

// usage is a line of the table.
type usage struct {
	Name  string         `json:"name"`
	State provider.State `json:"state"`
	*provider.Stats
}

func (p *program) stats(c *cli.Context) error {
	if c.Duration("interval") <= 0 {
		return usagef(c.Command, "--interval %v: must be more than zero", c.Duration("interval"))
	}
	names := append(c.Args().Slice(), p.tail...)
	pr, err := p.connect()
	if err != nil {
		return err
	}
	defer pr.Close()
	shown := 0 // lines on the terminal, to be replaced
	for {
		list, failed := usages(p.ctx, pr, names)
		switch {
		case c.Bool("json") && c.Bool("watch"):
			for _, u := range list {
				b, err := marshal(u, "")
				if err != nil {
					return err
				}
				p.stdout.Write(b)
			}
		case c.Bool("json"):
			return join(p.stdout.json(append([]usage{}, list...)), failed) // never null
		default:
			if shown > 0 && p.stdout.terminal() {
				fmt.Fprintf(p.stdout, "\x1b[%dA\x1b[J", shown)
			}
			p.stdout.table(usageRows(list))
			shown = len(list) + 1
		}
		if failed != nil || !c.Bool("watch") || p.stdout.closed() {
			return failed
		}
		select {
		case <-time.After(c.Duration("interval")):
		case <-p.ctx.Done():
			return asked(p.ctx)
		}
	}
}

// usages looks at the sandboxes that are named, or at all that run. Those that
// it could look at come back beside an error.
func usages(ctx context.Context, pr *docker.Provider, names []string) ([]usage, error) {
	all := len(names) == 0
	if all {
		infos, err := pr.List(ctx)
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			if info.State == provider.StateRunning {
				names = append(names, info.Name)
			}
		}
	}
	list, errs := make([]usage, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { list[i], errs[i] = usageOf(ctx, pr, name) })
	}
	wg.Wait()
	var seen []usage
	for i := range list {
		switch {
		case errs[i] == nil:
			seen = append(seen, list[i])
		case all && (errors.Is(errs[i], provider.ErrGone) || errors.Is(errs[i], provider.ErrSessionLost)):
			errs[i] = nil // it has ended meanwhile
		}
	}
	return seen, join(errs...)
}

func usageOf(ctx context.Context, pr *docker.Provider, name string) (usage, error) {
	sb, err := pr.Open(ctx, name)
	if err != nil {
		return usage{}, nameGone(name, err)
	}
	info, err := sb.Info(ctx)
	u := usage{Name: name, State: info.State}
	if err != nil || info.State != provider.StateRunning {
		return u, err
	}
	stats, err := sb.Stats(ctx)
	u.Stats = &stats
	return u, err
}

func usageRows(list []usage) [][]string {
	rows := [][]string{{"NAME", "STATE", "CPU", "MEMORY", "PROCESSES"}}
	for _, u := range list {
		row := []string{u.Name, string(u.State), "-", "-", "-"}
		if s := u.Stats; s != nil {
			row[2] = fmt.Sprintf("%.1f%%", s.CPUPercent)
			row[3] = threeOf(s.Memory, s.MemoryPeak, s.MemoryLimit, size)
			row[4] = threeOf(s.PIDs, s.PIDsPeak, s.PIDsLimit, func(n int64) string { return fmt.Sprint(n) })
		}
		rows = append(rows, row)
	}
	return rows
}

// threeOf writes what is used now, was used at most and may be used.
func threeOf(now, peak, limit int64, write func(int64) string) string {
	parts := []string{write(now), "-", "-"}
	if peak > 0 {
		parts[1] = write(peak)
	}
	if limit > 0 {
		parts[2] = write(limit)
	}
	return strings.Join(parts, " / ")
}

// size writes a number of bytes in the largest unit of which there is at least one.
func size(n int64) string {
	unit := -1
	f := float64(n)
	for f >= 1024 && unit < 4 {
		f /= 1024
		unit++
	}
	if unit < 0 {
		return fmt.Sprintf("%dB", n)
	}
	return fmt.Sprintf("%.4g%ciB", f, "KMGTP"[unit])
}
