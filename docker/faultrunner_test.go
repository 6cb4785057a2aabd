package docker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/internal/testenv"
	"github.com/capybara-hq/capyrun/provider"
)

// life is what a runner does that is killed on the way.
const life = `
def main(name):
    sb = sandbox.create(name = name, memory = "64M", pids = 64)
    sb.exec("(setsid sleep 100000 &); echo started", timeout = "1m")
    sb.upload(".", "uploaded")
    sb.spawn("sleep 100000")
    sb.destroy()
`

// hundred is how many there are of what the tests below have a hundred of.
func hundred() int {
	if testing.Short() {
		return 15
	}
	return 100
}

// Runners are killed at random points of their lives. A sweep, also one that
// goes on meanwhile, removes everything of theirs, and leaves alone what others
// hold or what is kept.
func TestFaultRunnerKilled(t *testing.T) {
	t.Parallel()
	const atOnce = 4
	kills := hundred()
	binary := testenv.Binary(t)
	testenv.Image(t, testenv.Busybox)
	api := engine(t)
	p := newProvider(t, docker.Config{})
	mine := create(t, p, small(""))
	watched, err := mine.Start(t.Context(), provider.Command{Shell: "exec sleep 100000"})
	if err != nil {
		t.Fatal(err)
	}
	kept := "cap-keep" + strings.TrimPrefix(provider.GenerateName(), provider.GeneratedPrefix)
	cmd, out := startVictim(t, kept)
	waitFor(t, out, "ran "+kept)
	kill(t, cmd)
	t.Cleanup(func() {
		if err := p.Destroy(context.Background(), kept); err != nil {
			t.Error(err)
		}
	})

	dir := t.TempDir()
	workflow := filepath.Join(dir, "life.star")
	if err := os.WriteFile(workflow, []byte(life), 0o644); err != nil {
		t.Fatal(err)
	}
	group := provider.GenerateName()
	// run is one life, of which the end comes after a while if not before.
	run := func(end time.Duration) (took time.Duration, output string, err error) {
		cmd := exec.Command(binary, "run", workflow, "-p", "name="+provider.GenerateName())
		cmd.Env = append(os.Environ(), "CAPYRUN_IMAGE="+testenv.Busybox, "CAPYRUN_AGENT_BINARY="+binary, "CAPYRUN_LABELS="+testLabel+"=docker,"+testLabel+".group="+group)
		var b strings.Builder
		cmd.Stdout, cmd.Stderr = &b, &b
		begin := time.Now()
		if err := cmd.Start(); err != nil {
			return 0, "", err
		}
		timer := time.AfterFunc(end, func() { cmd.Process.Kill() })
		defer timer.Stop()
		err = cmd.Wait()
		return time.Since(begin), b.String(), err
	}

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex // over random and longest
	var longest time.Duration
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			took, output, err := run(5 * time.Minute)
			if err != nil {
				t.Errorf("a runner that is not killed: %v\n%s", err, output)
			}
			mu.Lock()
			longest = max(longest, took)
			mu.Unlock()
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}

	sweeps, stop := context.WithCancel(t.Context())
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		for sweeps.Err() == nil {
			if _, err := p.Sweep(sweeps); err != nil && sweeps.Err() == nil {
				t.Errorf("sweep: %v", err)
			}
			select {
			case <-time.After(500 * time.Millisecond):
			case <-sweeps.Done():
			}
		}
	}()
	ended := 0
	work := make(chan time.Duration)
	for range atOnce {
		wg.Go(func() {
			for end := range work {
				_, output, err := run(end)
				if err == nil {
					mu.Lock()
					ended++
					mu.Unlock()
				} else if !strings.Contains(err.Error(), "killed") {
					t.Errorf("%v\n%s", err, output)
				}
			}
		})
	}
	for range kills {
		work <- time.Duration(random.Int64N(int64(longest)))
	}
	close(work)
	wg.Wait()
	stop()
	<-swept
	t.Logf("a life took %v; of %d runners %d had ended before they were killed", longest, kills, ended)

	// What the engine has begun for a killed client may end after the kill, so
	// the sweep is repeated until nothing has come for a while.
	quiet := 0
	for end := time.Now().Add(3 * time.Minute); quiet < 5; time.Sleep(50 * time.Millisecond) {
		if _, err := p.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		l := leftAt(t, api, testLabel+".group="+group)
		if quiet++; len(l) > 0 {
			quiet = 0
		}
		if time.Now().After(end) {
			t.Fatalf("left: %v", l)
		}
	}
	if info, err := watched.Info(t.Context()); err != nil || !info.Running {
		t.Errorf("a live owner's process: %+v, %v", info, err)
	}
	sb, err := p.Open(t.Context(), kept)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := sb.Exec(t.Context(), provider.Command{Shell: "echo kept"}); err != nil || string(r.Stdout) != "kept\n" {
		t.Errorf("the kept sandbox: %+v, %v", r, err)
	}
}

// A hundred sandboxes live at once. Not beside other tests: a hundred starts are
// all that a small machine can do.
func TestFaultManySandboxes(t *testing.T) {
	many := hundred()
	p := newProvider(t, docker.Config{})
	sandboxes := make([]provider.Sandbox, many)
	phase := func(what string, f func(i int) error) {
		t.Helper()
		begin := time.Now()
		var wg sync.WaitGroup
		for i := range many {
			wg.Go(func() {
				if err := f(i); err != nil {
					t.Errorf("%s %d: %v", what, i, err)
				}
			})
		}
		wg.Wait()
		t.Logf("%s: %v", what, time.Since(begin).Round(time.Millisecond))
	}
	t.Cleanup(func() {
		phase("destroy", func(i int) error {
			if sandboxes[i] == nil {
				return nil
			}
			if err := sandboxes[i].Destroy(context.Background()); err != nil {
				return err
			}
			if l := left(t, sandboxes[i].Name()); len(l) > 0 {
				return fmt.Errorf("left: %v", l)
			}
			return nil
		})
	})
	phase("create", func(i int) (err error) {
		sb, err := p.Create(t.Context(), small(""))
		if err == nil {
			sandboxes[i] = sb
		}
		return err
	})
	if t.Failed() {
		return
	}
	phase("exec", func(i int) error {
		r, err := sandboxes[i].Exec(t.Context(), provider.Command{Shell: fmt.Sprintf("echo %d > f; cat f", i)})
		if err == nil && string(r.Stdout) != fmt.Sprintln(i) {
			err = fmt.Errorf("%+v", r)
		}
		return err
	})
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmHWM") {
			t.Logf("the runner's memory, race detector and all: %s", strings.TrimSpace(line))
		}
	}
}
