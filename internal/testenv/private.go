package testenv

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// PrivateEngine is a Docker Engine that one test has for itself, to stop and to
// kill. Its sandboxes have no network but "none".
type PrivateEngine struct {
	// Endpoint is where it listens.
	Endpoint string

	dir      string
	commands io.WriteCloser
	answers  *bufio.Scanner
}

// NewPrivateEngine starts an engine with further flags of dockerd, gives it the
// image Busybox, and takes it away with all that is on it when the test ends.
// It needs root, or sudo without a password.
func NewPrivateEngine(t testing.TB, flags ...string) *PrivateEngine {
	t.Helper()
	Image(t, Busybox)
	missing := func(what string) {
		t.Helper()
		if os.Getenv("REQUIRE_DOCKER") != "" {
			t.Fatalf("REQUIRE_DOCKER is set and an engine of the test's own cannot be started: %s", what)
		}
		t.Skipf("an engine of the test's own cannot be started: %s", what)
	}
	// Programs of root are not on everybody's PATH.
	path := os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin"
	for _, program := range []string{"dockerd", "containerd"} {
		if !onPath(path, program) {
			missing(program + " is not installed (Debian: docker.io)")
		}
	}
	script := filepath.Join(Root(), "scripts", "private-engine.sh")
	// Not t.TempDir: a socket's path is short. Not /tmp: it may be in memory.
	dir, err := os.MkdirTemp("/var/tmp", "capyrun-engine-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	// Made here, so that tests put plugins into it without being root.
	if err := os.Mkdir(filepath.Join(dir, "plugins"), 0o755); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"env", "PATH=" + path, "bash", script, dir, strconv.Itoa(os.Getgid())}, flags...)
	if os.Geteuid() != 0 {
		if exec.Command("sudo", "-n", "true").Run() != nil {
			os.Remove(dir)
			missing("that needs root, or sudo without a password")
		}
		args = append([]string{"sudo", "-n"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stderr = os.Stderr
	commands, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	e := &PrivateEngine{Endpoint: "unix://" + dir + "/docker.sock", dir: dir, commands: commands, answers: bufio.NewScanner(answers)}
	t.Cleanup(func() {
		commands.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the private engine's script: %v", err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("the private engine left %s", dir)
		}
	})
	e.Start(t)
	e.load(t, Busybox)
	return e
}

// Plugins is the directory in which the engine looks for plugins.
func (e *PrivateEngine) Plugins() string { return filepath.Join(e.dir, "plugins") }

// Dir is a directory on the engine's disk. What is in it at the end is removed.
func (e *PrivateEngine) Dir() string { return e.dir }

// Run runs a program as root and with the engine's view of the machine's mounts.
func (e *PrivateEngine) Run(args ...string) error {
	pid, err := os.ReadFile(filepath.Join(e.dir, "dockerd.pid"))
	if err != nil {
		return err
	}
	args = append([]string{"nsenter", "--mount", "--target", strings.TrimSpace(string(pid)), "--"}, args...)
	if os.Geteuid() != 0 {
		args = append([]string{"sudo", "-n"}, args...)
	}
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func onPath(path, program string) bool {
	for _, dir := range filepath.SplitList(path) {
		if info, err := os.Stat(filepath.Join(dir, program)); err == nil && info.Mode()&0o111 != 0 {
			return true
		}
	}
	return false
}

// Start starts the stopped engine and returns when it answers.
func (e *PrivateEngine) Start(t testing.TB) {
	t.Helper()
	e.do(t, "start")
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := e.ping()
		if err == nil {
			return
		}
		if time.Now().After(end) || !e.ask(t, "alive") {
			log, _ := os.ReadFile(filepath.Join(e.dir, "log"))
			t.Fatalf("the private engine does not answer: %v\n%s", err, log[max(0, len(log)-4000):])
		}
	}
}

// Stop ends the engine in order, and with it the sandboxes.
func (e *PrivateEngine) Stop(t testing.TB) { t.Helper(); e.do(t, "term") }

// Kill kills the engine. The sandboxes run on until it starts again.
func (e *PrivateEngine) Kill(t testing.TB) { t.Helper(); e.do(t, "kill") }

// Hang makes the engine accept connections and say nothing, until Continue.
func (e *PrivateEngine) Hang(t testing.TB) { t.Helper(); e.do(t, "hang") }

// Continue ends Hang.
func (e *PrivateEngine) Continue(t testing.TB) { t.Helper(); e.do(t, "cont") }

func (e *PrivateEngine) do(t testing.TB, command string) {
	t.Helper()
	if !e.ask(t, command) {
		t.Fatalf("the private engine: %s", e.answers.Text())
	}
}

// ask sends a command and reports whether it was done.
func (e *PrivateEngine) ask(t testing.TB, command string) bool {
	t.Helper()
	if _, err := fmt.Fprintln(e.commands, command); err != nil {
		t.Fatal(err)
	}
	if !e.answers.Scan() {
		t.Fatal("the private engine's script has ended")
	}
	return strings.HasPrefix(e.answers.Text(), "ok")
}

func (e *PrivateEngine) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(e.dir, "docker.sock"))
	}}, Timeout: time.Minute}
}

func (e *PrivateEngine) ping() error {
	resp, err := e.client().Get("http://docker/_ping")
	if err == nil {
		resp.Body.Close()
	}
	return err
}

// load copies an image from the tests' engine.
func (e *PrivateEngine) load(t testing.TB, image string) {
	t.Helper()
	c, base, err := client()
	if err != nil {
		t.Fatal(err)
	}
	from, err := c.Get(base + "/images/" + image + "/get")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Body.Close()
	to, err := e.client().Post("http://docker/images/load?quiet=1", "application/x-tar", from.Body)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Body.Close()
	if out, err := io.ReadAll(to.Body); err != nil || to.StatusCode != http.StatusOK || strings.Contains(string(out), `"error"`) {
		t.Fatalf("load %s: %s: %s, %v", image, to.Status, out, err)
	}
}
