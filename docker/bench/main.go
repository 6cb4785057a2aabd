// Command bench measures capyrun beside the engine's own way of doing the same
// thing, in one run, and prints the ratios as Markdown. Absolute times do not
// hold on a shared machine; ratios taken in turn do.
//
// It needs an engine, its command line, the images of scripts/image.sh, and
// bin/capyrun.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"

	"github.com/docker/docker/client"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/provider"
)

func main() {
	var o options
	only := ""
	flag.IntVar(&o.rounds, "rounds", 60, "measurements of each cheap operation; costly ones take a part of that")
	flag.StringVar(&o.binary, "binary", "bin/capyrun", "the static capyrun binary")
	flag.StringVar(&o.image, "image", docker.DefaultImage, "an image with bash")
	flag.StringVar(&o.small, "small-image", "capyrun-test-busybox", "the image of which a hundred sandboxes are made")
	flag.StringVar(&only, "rows", "", "measure the rows whose text matches this `regexp` alone")
	flag.Parse()
	ctx := context.Background()
	var err error
	if flag.Arg(0) == workerArg {
		err = work(ctx, o)
	} else if o.only, err = regexp.Compile(only); err == nil {
		err = run(ctx, os.Stdout, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	rounds               int
	binary, image, small string
	only                 *regexp.Regexp
}

// bench is what the rows share.
type bench struct {
	options
	ctx   context.Context
	p     *docker.Provider
	api   *client.Client
	sb    provider.Sandbox
	id    string   // of the sandbox's container
	after []func() // what is done between the measurements
	ends  []func() // what is done at the end
}

func run(ctx context.Context, w io.Writer, o options) error {
	p, err := docker.New(ctx, docker.Config{AgentBinary: o.binary})
	if err != nil {
		return err
	}
	defer p.Close()
	api, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return err
	}
	defer api.Close()
	// Two processors, as an exec by the engine alone uses: most of its work is
	// done outside of the container's limit.
	sb, err := p.Create(ctx, provider.Spec{Image: o.image, CPU: min(2, float64(runtime.NumCPU()))})
	if err != nil {
		return err
	}
	defer sb.Destroy(ctx)
	info, err := sb.Info(ctx)
	if err != nil {
		return err
	}
	b := &bench{options: o, ctx: ctx, p: p, api: api, sb: sb, id: info.ID}
	defer func() {
		for _, end := range b.ends {
			end()
		}
	}()
	if err := b.heading(w); err != nil {
		return err
	}
	for _, rows := range []func() []row{
		b.commandRows, b.createRows, b.fileRows, b.bulkRows, b.deadlineRows, b.starlarkRows, b.manyRows,
	} {
		for _, r := range rows() {
			if !o.only.MatchString(r.what) {
				continue
			}
			cells, err := r.measure()
			if err != nil {
				return fmt.Errorf("%s: %w", r.what, err)
			}
			fmt.Fprintf(w, "| %s | %s |\n", r.what, cells)
		}
	}
	bare, err := b.bareShell()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nFork and exec of `bash -c true` on this machine, with nothing around it: p50 %.2f ms. That much of a command is the shell's own.\n", ms(bare))
	return nil
}

func (b *bench) heading(w io.Writer) error {
	info, err := b.api.Info(b.ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, `# Benchmarks

Output of `+"`make bench`"+`. Each row measures both ways in turn in the same run; the
ratio is that of the medians, and it is what holds on other machines. Less is
better in every row.

%s, Docker Engine %s (API %s), cgroup v%s, %d processors, kernel %s, %s.

| what | capyrun | beside it | ratio | to reach |
|---|---|---|---|---|
`, info.OperatingSystem, info.ServerVersion, b.api.ClientVersion(), info.CgroupVersion, info.NCPU, info.KernelVersion, runtime.Version())
	return nil
}
