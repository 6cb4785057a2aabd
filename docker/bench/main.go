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
	"syscall"
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
	block  int // how many times each way is measured before the other's turn
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
	// Two processors, as an exec by the engine alone uses: most of its work is
	// done outside of the container's limit.
	sb, err := p.Create(ctx, provider.Spec{Image: image, CPU: min(2, float64(runtime.NumCPU()))})
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
	bare, err := b.bareShell()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nFork and exec of `bash -c true` on this machine, with nothing around it: p50 %.2f ms. That much of a command is the shell's own.\n", ms(bare))
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

// measure runs blocks of both ways in turn and returns the row of the table.
func (b *bench) measure(r row) (string, error) {
	var ours, theirs []time.Duration
	for len(ours) < r.rounds {
		if err := b.block(r, r.ours, &ours); err != nil {
			return "", err
		}
		if err := b.block(r, r.theirs, &theirs); err != nil {
			return "", fmt.Errorf("beside it: %w", err)
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

// block measures one way a few times after each other, as a script would do it.
// The first time in a block warms up and does not count.
func (b *bench) block(r row, f func(int) error, all *[]time.Duration) error {
	time.Sleep(settle)
	for i := range max(r.block, 1) + 1 {
		took, err := b.timed(f, len(*all))
		if err != nil {
			return err
		}
		if i > 0 {
			*all = append(*all, took)
		}
	}
	return nil
}

// settle lets what the last measurement has left to the engine come to its
// end: an exec's or a container's cleanup goes on for a while after the answer,
// and would be charged to whatever is measured next.
const settle = 100 * time.Millisecond

// timed times f, and then does what f left to be done outside of that.
func (b *bench) timed(f func(int) error, round int) (time.Duration, error) {
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

// bareShell times what no way of running a command in a shell can go below.
func (b *bench) bareShell() (time.Duration, error) {
	var all []time.Duration
	err := b.block(row{block: 5 * b.rounds}, func(int) error {
		pid, err := syscall.ForkExec("/bin/bash", []string{"bash", "-c", "true"}, &syscall.ProcAttr{Env: []string{"LANG=C.UTF-8"}})
		if err == nil {
			_, err = syscall.Wait4(pid, nil, 0, nil)
		}
		return err
	}, &all)
	if err != nil {
		return 0, err
	}
	return median(all), nil
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
	err = b.block(row{block: b.rounds}, func(int) error {
		out, err := exec.Command(b.binary, "run", f.Name()).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
		}
		return nil
	}, &all)
	if err != nil {
		return 0, err
	}
	return median(all), nil
}
