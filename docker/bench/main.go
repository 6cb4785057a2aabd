// Command bench measures capyrun beside the engine's own way of doing the same
// thing, in one run, and prints the ratios as Markdown. Absolute times do not
// hold on a shared machine; ratios taken in turn do.
//
// It needs an engine, the images of scripts/image.sh, and bin/capyrun.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/client"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/provider"
)

func main() {
	rounds := flag.Int("rounds", 60, "measurements of each cheap operation; costly ones take a part of that")
	binary := flag.String("binary", "bin/capyrun", "the static capyrun binary")
	image := flag.String("image", docker.DefaultImage, "an image with bash")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *rounds, *binary, *image); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is what the rows share.
type bench struct {
	ctx    context.Context
	p      *docker.Provider
	api    *client.Client
	binary string
	image  string
	rounds int
	sb     provider.Sandbox
	id     string   // of the sandbox's container
	after  []func() // what is done between the measurements
}

// row is one line of the table: ours against theirs.
type row struct {
	what   string
	target float64 // the ratio to reach
	rounds int
	ours   func(round int) error
	theirs func(round int) error
}

func run(ctx context.Context, w io.Writer, rounds int, binary, image string) error {
	p, err := docker.New(ctx, docker.Config{AgentBinary: binary})
	if err != nil {
		return err
	}
	defer p.Close()
	api, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return err
	}
	defer api.Close()
	sb, err := p.Create(ctx, provider.Spec{Image: image})
	if err != nil {
		return err
	}
	defer sb.Destroy(ctx)
	info, err := sb.Info(ctx)
	if err != nil {
		return err
	}
	b := &bench{ctx: ctx, p: p, api: api, binary: binary, image: image, rounds: rounds, sb: sb, id: info.ID}
	host, stop, err := hostAgent(ctx, binary)
	if err != nil {
		return err
	}
	defer stop()

	if err := b.heading(w); err != nil {
		return err
	}
	for _, r := range b.rows(host) {
		line, err := b.measure(r)
		if err != nil {
			return fmt.Errorf("%s: %w", r.what, err)
		}
		fmt.Fprintln(w, line)
	}
	cold, err := b.coldStart()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\n`capyrun run` of an empty workflow, whole process: p50 %.1f ms (to reach: 30 ms).\n", ms(cold))
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

| what | capyrun p50 | beside it p50 | ratio | to reach |
|---|---|---|---|---|
`, info.OperatingSystem, info.ServerVersion, b.api.ClientVersion(), info.CgroupVersion, info.NCPU, info.KernelVersion, runtime.Version())
	return nil
}

// measure runs both ways in turn and returns the row of the table.
func (b *bench) measure(r row) (string, error) {
	var ours, theirs []time.Duration
	const warmUp = 2
	for i := range r.rounds + warmUp {
		a, err := b.timed(r.ours, i)
		if err != nil {
			return "", err
		}
		t, err := b.timed(r.theirs, i)
		if err != nil {
			return "", fmt.Errorf("beside it: %w", err)
		}
		if i >= warmUp {
			ours, theirs = append(ours, a), append(theirs, t)
		}
	}
	a, t := median(ours), median(theirs)
	ratio := float64(a) / float64(t)
	verdict := "reached"
	if ratio > r.target {
		verdict = "**not reached**"
	}
	return fmt.Sprintf("| %s | %.2f ms | %.2f ms | %s | %s, %s |", r.what, ms(a), ms(t), ratioText(ratio), ratioText(r.target), verdict), nil
}

// settle lets what the last measurement has left to the engine come to its
// end: an exec's or a container's cleanup goes on for a while after the answer,
// and would be charged to whatever is measured next.
const settle = 50 * time.Millisecond

// timed times f, and then does what f left to be done outside of that.
func (b *bench) timed(f func(int) error, round int) (time.Duration, error) {
	time.Sleep(settle)
	begin := time.Now()
	err := f(round)
	took := time.Since(begin)
	for _, after := range b.after {
		after()
	}
	b.after = nil
	return took, err
}

func (b *bench) later(f func()) { b.after = append(b.after, f) }

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// ratioText writes small ratios as fractions: 1/29 says more than 0.034.
func ratioText(r float64) string {
	if r < 0.5 {
		return fmt.Sprintf("1/%.0f", 1/r)
	}
	return fmt.Sprintf("%.2f", r)
}

// coldStart times the whole process.
func (b *bench) coldStart() (time.Duration, error) {
	f, err := os.CreateTemp("", "empty-*.star")
	if err != nil {
		return 0, err
	}
	f.Close()
	defer os.Remove(f.Name())
	var all []time.Duration
	for range b.rounds {
		d, err := b.timed(func(int) error {
			out, err := exec.Command(b.binary, "run", f.Name()).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
			}
			return nil
		}, 0)
		if err != nil {
			return 0, err
		}
		all = append(all, d)
	}
	return median(all), nil
}
