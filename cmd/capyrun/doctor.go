package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/report"
)

func (p *program) doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "look for what keeps sandboxes from working, and how to mend it",
		Description: "Checks the engine and what sandboxes need of it; the last check creates a sandbox, uses it\n" +
			"and destroys it. The exit code is 3 where something failed.\n\nExample: capyrun doctor",
		ArgsUsage: " ",
		Flags:     []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			if err := p.noArgs(c); err != nil {
				return err
			}
			checks, err := p.doctor()
			if err != nil {
				return err
			}
			if c.Bool("json") {
				if err := p.stdout.json(checks); err != nil {
					return err
				}
			} else {
				for _, check := range checks {
					fmt.Fprintf(p.stdout, "%-4s  %-10s  %s\n", check.Status, check.Name, report.Clean(check.Detail))
					if check.Fix != "" {
						fmt.Fprintf(p.stdout, "%16s  -> %s\n", "", report.Clean(check.Fix))
					}
				}
			}
			for _, check := range checks {
				if check.Status == docker.CheckFail {
					return exitStatus(exitEnvironment)
				}
			}
			return nil
		},
	}
}

// doctor makes the checks. That the engine cannot be reached is a finding, not an error.
func (p *program) doctor() ([]docker.Check, error) {
	pr, err := p.connect()
	if err == nil {
		defer pr.Close()
		return pr.Doctor(p.ctx), p.ctx.Err()
	}
	var failed *provider.Error
	if p.ctx.Err() != nil || !errors.As(err, &failed) {
		return nil, err
	}
	bare := *failed
	if errors.Is(err, provider.ErrUnreachable) {
		bare.Hint = "" // it says to run this very command
	}
	check := docker.Check{Name: "engine", Status: docker.CheckFail, Detail: bare.Error(), Fix: "start the engine, or name another one with --endpoint"}
	return []docker.Check{check}, nil
}
