package main

import (
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/urfave/cli/v2"

	"github.com/capybara-hq/capyrun/provider"
)

func (p *program) suspendCommand() *cli.Command {
	return &cli.Command{
		Name:  "suspend",
		Usage: "stop sandboxes and keep their files",
		Description: "Ends every process within five seconds; /workspace stays, /tmp is emptied. Whatever is done with\n" +
			"a suspended sandbox resumes it. Writes the names of those suspended.\n\nExample: capyrun suspend cap-2f3k9s",
		ArgsUsage: "NAME...",
		Action: func(c *cli.Context) error {
			return p.each(c, func(ctx context.Context, sb provider.Sandbox) error { return sb.Suspend(ctx) })
		},
	}
}

func (p *program) resumeCommand() *cli.Command {
	return &cli.Command{
		Name:        "resume",
		Usage:       "start suspended sandboxes again",
		Description: "Does nothing to one that runs. Writes the names of those that run then.\n\nExample: capyrun resume cap-2f3k9s",
		ArgsUsage:   "NAME...",
		Action: func(c *cli.Context) error {
			return p.each(c, func(ctx context.Context, sb provider.Sandbox) error { return sb.Resume(ctx) })
		},
	}
}

// each does something with every sandbox that is named, with all at once, and
// writes the names of those with which it went well.
func (p *program) each(c *cli.Context, do func(context.Context, provider.Sandbox) error) error {
	names, err := p.args(c, 1, math.MaxInt, "names of sandboxes")
	if err != nil {
		return err
	}
	pr, err := p.connect()
	if err != nil {
		return err
	}
	defer pr.Close()
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			sb, err := pr.Open(p.ctx, name)
			if err == nil {
				err = do(p.ctx, sb)
			}
			errs[i] = nameGone(name, err)
		})
	}
	wg.Wait()
	for i, name := range names {
		if errs[i] == nil {
			fmt.Fprintln(p.stdout, name)
		}
	}
	return join(errs...)
}
