package docker_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/internal/testenv"
	"github.com/capybara-hq/capyrun/provider"
)

// victimEnv makes the test binary a runner that creates the sandboxes whose
// names the variable lists, again and again, until it is killed.
const victimEnv = "CAPYRUN_TEST_VICTIM"

func victim() {
	if strings.HasPrefix(os.Getenv(victimEnv), "cap-far") {
		self := provider.Self()
		self.Host = "elsewhere"
		provider.Self = func() provider.Owner { return self }
	}
	ctx := context.Background()
	p, err := docker.New(ctx, docker.Config{
		AgentBinary: os.Getenv("CAPYRUN_TEST_AGENT"),
		Image:       testenv.Busybox,
		Labels:      map[string]string{testLabel: "docker"},
	})
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	for _, name := range strings.Fields(os.Getenv(victimEnv)) {
		fmt.Println("creating", name)
		sb, err := p.Create(ctx, provider.Spec{Name: name, Memory: 64 << 20, Keep: strings.HasPrefix(name, "cap-keep")})
		if err != nil {
			fmt.Println("error:", err)
			return
		}
		fmt.Println("created", name)
		if _, err := sb.Exec(ctx, provider.Command{Shell: "sleep 100000 & echo running", OnOutput: func(_ provider.Stream, b []byte) { fmt.Print(string(b)) }}); err != nil {
			fmt.Println("error:", err)
		}
		fmt.Println("ran", name)
	}
	select {}
}

// startVictim starts a runner as a process of its own.
func startVictim(t *testing.T, names ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimEnv+"="+strings.Join(names, " "), "CAPYRUN_TEST_AGENT="+testenv.Binary(t))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd, bufio.NewScanner(out)
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
}

// waitFor reads the victim's output up to a line.
func waitFor(t *testing.T, out *bufio.Scanner, line string) {
	t.Helper()
	for out.Scan() {
		if out.Text() == line {
			return
		}
		if strings.HasPrefix(out.Text(), "error:") {
			t.Fatal(out.Text())
		}
	}
	t.Fatalf("the victim ended before %q", line)
}

// A sandbox whose owner is gone ends by itself after the grace time.
func TestFaultOwnerLost(t *testing.T) {
	t.Parallel()
	testenv.Image(t, testenv.Busybox)
	api := engine(t)
	p := newProvider(t, docker.Config{})
	// Nobody here can tell that such an owner is dead, so that no other test's
	// sweep takes the sandbox before it has ended.
	name := "cap-far" + strings.TrimPrefix(provider.GenerateName(), provider.GeneratedPrefix)
	cmd, out := startVictim(t, name)
	waitFor(t, out, "ran "+name)
	kill(t, cmd)
	killed := time.Now()
	for {
		c, err := api.ContainerInspect(t.Context(), name)
		if errdefs.IsNotFound(err) {
			break // it has ended, and was swept
		}
		if err != nil {
			t.Fatal(err)
		}
		if !c.State.Running {
			if c.State.ExitCode != agent.ExitOwnerLost {
				t.Errorf("status %d", c.State.ExitCode)
			}
			break
		}
		if time.Since(killed) > 60*time.Second {
			t.Fatal("it still runs")
		}
		time.Sleep(100 * time.Millisecond)
	}
	if took := time.Since(killed); took < 25*time.Second {
		t.Errorf("it ended after %v, within the grace time", took)
	}
	// Another test's sweep may be at it already.
	if _, err := p.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	until(t, "an end of what it left", time.Minute, func() bool { return len(left(t, name)) == 0 })
}

// Whatever of the agent's store is pruned, the next create brings it back.
func TestAgentPruned(t *testing.T) {
	api := engine(t)
	ctx := t.Context()
	// Another binary has another store, so that other tests are not disturbed.
	binary := t.TempDir() + "/capyrun"
	data, err := os.ReadFile(testenv.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(binary, append(data, t.Name()...), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := docker.New(ctx, docker.Config{AgentBinary: binary, Image: testenv.Image(t, testenv.Busybox), Labels: map[string]string{testLabel: "docker"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	agents := func() []string { return agentContainers(t) }
	before := agents()
	sb := create(t, p, provider.Spec{})
	var store string
	for _, name := range agents() {
		if !slices.Contains(before, name) {
			store = name
		}
	}
	if store == "" {
		t.Fatal("no store was made")
	}
	if err := sb.Destroy(ctx); err != nil {
		t.Fatal(err)
	}
	removeContainer := func() {
		if err := api.ContainerRemove(ctx, store, container.RemoveOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
	}
	removeVolume := func() {
		if err := api.VolumeRemove(ctx, store, true); err != nil {
			t.Fatal(err)
		}
	}
	removeImage := func() { removeImageByName(t, api, store+":latest") }
	defer func() {
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			api.ContainerRemove(ctx, store, container.RemoveOptions{Force: true})
			if api.VolumeRemove(ctx, store, true) == nil {
				break
			}
		}
		removeImage()
	}()
	for name, prune := range map[string]func(){
		"container":            func() { removeContainer() },
		"container and image":  func() { removeContainer(); removeImage() },
		"container and volume": func() { removeContainer(); removeVolume() },
		"everything":           func() { removeContainer(); removeVolume(); removeImage() },
	} {
		t.Run(name, func(t *testing.T) {
			prune()
			sb := create(t, p, provider.Spec{})
			if got := run(t, sb, "echo works"); got != "works\n" {
				t.Errorf("got %q", got)
			}
			if err := sb.Destroy(ctx); err != nil {
				t.Error(err)
			}
			if !slices.Contains(agents(), store) {
				// The provider works from what it remembers until that fails; a new
				// runner looks.
				p2, err := docker.New(ctx, docker.Config{AgentBinary: binary, Image: testenv.Busybox, Labels: map[string]string{testLabel: "docker"}})
				if err != nil {
					t.Fatal(err)
				}
				defer p2.Close()
				create(t, p2, provider.Spec{})
				if !slices.Contains(agents(), store) {
					t.Error("the store was not made again")
				}
			}
		})
	}
}
