package main

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/starlib/script"
)

func (p *program) createCommand() *cli.Command {
	return &cli.Command{
		Name:  "create",
		Usage: "create a sandbox and leave it",
		Description: "Writes the sandbox's name. It stays until 'capyrun rm' removes it or --ttl has passed.\n\n" +
			"Examples:\n" +
			"capyrun create --memory 512M --ttl 1h\n" +
			"box=$(capyrun create --memory 2G --ttl 1h) && capyrun shell $box",
		ArgsUsage: " ",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the sandbox (default: one is made)"},
			&cli.StringFlag{Name: "image", Usage: "image `REF` (default: that of the configuration)"},
			&cli.Float64Flag{Name: "cpu", Usage: "`NUMBER` of processors, fractions allowed", DefaultText: fmt.Sprint(provider.DefaultCPU)},
			&cli.StringFlag{Name: "memory", Usage: "`SIZE` of the memory, such as 512M", DefaultText: "1G"},
			&cli.StringFlag{Name: "disk", Usage: "`SIZE` of /workspace", DefaultText: "no limit"},
			&cli.Int64Flag{Name: "pids", Usage: "greatest `NUMBER` of processes and threads", DefaultText: fmt.Sprint(provider.DefaultPIDs)},
			&cli.StringFlag{Name: "egress", Usage: "network `MODE`: none or open (default: none)"},
			&cli.StringSliceFlag{Name: "env", Aliases: []string{"e"}, Usage: "variable of every command, `NAME=VALUE`; may be repeated"},
			&cli.StringSliceFlag{Name: "label", Usage: "label of the sandbox, `KEY=VALUE`; may be repeated"},
			&cli.DurationFlag{Name: "ttl", DefaultText: "none", Usage: "end the sandbox after this `TIME`, such as 1h"},
			&cli.BoolFlag{Name: "replace", Usage: "destroy a sandbox of ours of the same name first"},
			&cli.DurationFlag{Name: "timeout", DefaultText: "none", Usage: "`TIME` that the creation may take; 0 means no end"},
		},
		Action: p.create,
	}
}

func (p *program) create(c *cli.Context) error {
	if err := p.noArgs(c); err != nil {
		return err
	}
	spec, err := specOf(c)
	if err != nil {
		return err
	}
	pr, err := p.connect()
	if err != nil {
		return err
	}
	defer pr.Close()
	return p.shown(func(ctx context.Context) error {
		ctx, cancel := timeLimit(ctx, c.Duration("timeout"))
		defer cancel()
		sb, err := pr.Create(ctx, spec)
		if err == nil {
			fmt.Fprintln(p.stdout, sb.Name())
		}
		return err
	})
}

// specOf returns the sandbox that the flags describe.
func specOf(c *cli.Context) (spec provider.Spec, err error) {
	if err := noNegative(c, "timeout"); err != nil {
		return spec, err
	}
	spec = provider.Spec{
		Name:    c.String("name"),
		Image:   c.String("image"),
		CPU:     c.Float64("cpu"),
		PIDs:    c.Int64("pids"),
		Egress:  provider.Egress(c.String("egress")),
		TTL:     c.Duration("ttl"),
		Keep:    !c.IsSet("ttl"), // this program ends before anybody uses the sandbox
		Replace: c.Bool("replace"),
	}
	// For the provider 0 is the default, which is not what a person means by it.
	for flag, zero := range map[string]bool{"cpu": spec.CPU == 0, "pids": spec.PIDs == 0, "ttl": spec.TTL == 0} {
		if c.IsSet(flag) && zero {
			return spec, usagef(c.Command, "--%s 0: must be more than zero", flag)
		}
	}
	for flag, size := range map[string]*int64{"memory": &spec.Memory, "disk": &spec.Disk} {
		if *size, err = sizeFlag(c, flag); err != nil {
			return spec, err
		}
	}
	if spec.Env, err = pairs(c, "env"); err != nil {
		return spec, err
	}
	if spec.Labels, err = pairs(c, "label"); err != nil {
		return spec, err
	}
	return spec, spec.Validate()
}

// sizeFlag returns the size that a flag was given, 0 where it was not.
func sizeFlag(c *cli.Context, flag string) (int64, error) {
	if !c.IsSet(flag) {
		return 0, nil
	}
	size, err := script.ParseSize(c.String(flag))
	if err == nil && size == 0 {
		err = fmt.Errorf("%q: must be more than zero", c.String(flag))
	}
	if err != nil {
		return 0, usagef(c.Command, "--%s: %v", flag, err)
	}
	return size, nil
}

// timeLimit bounds ctx by a flag's time; 0 is none.
func timeLimit(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, d, timeoutError{fmt.Sprintf("timed out after %v", d)})
}
