package main

import (
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/capybara-hq/capyrun/internal/testenv"
)

// newBox creates a sandbox by the command line, for as long as the test runs.
func newBox(t *testing.T, image string) string {
	t.Helper()
	testenv.Image(t, image)
	out, err := exec.Command(testenv.Binary(t), "create", "--memory", "64M", "--image", image).Output()
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimSpace(string(out))
	t.Cleanup(func() { exec.Command(testenv.Binary(t), "rm", name).Run() })
	return name
}

// modes are those of the terminal.
func (r *terminalRun) modes() unix.Termios {
	r.t.Helper()
	modes, err := unix.IoctlGetTermios(int(r.ours.Fd()), unix.TCGETS)
	if err != nil {
		r.t.Fatal(err)
	}
	return *modes
}

// types sends keys, and then waits for what is shown because of them.
func (r *terminalRun) types(keys, shown string) {
	r.t.Helper()
	r.shown = ""
	if _, err := io.WriteString(r.ours, keys); err != nil {
		r.t.Fatal(err)
	}
	r.await(shown)
}

// beginShell begins "capyrun shell" and waits for its prompt.
func beginShell(t *testing.T, name string) (r *terminalRun, before unix.Termios) {
	t.Helper()
	r = beginOnTerminal(t, true, "shell", name)
	before = r.modes() // it takes the terminal over only once the sandbox answers
	r.await("$ ")
	if cmp.Equal(before, r.modes()) {
		t.Error("the terminal is not raw")
	}
	return r, before
}

func (r *terminalRun) restored(before unix.Termios) {
	r.t.Helper()
	if d := cmp.Diff(before, r.modes()); d != "" {
		r.t.Errorf("the terminal is not as it was: %s", d)
	}
}

// TestShell: all keys go to the sandbox, what it needs to know of the terminal
// is passed on, and its exit code is that of the shell.
func TestShell(t *testing.T) {
	for _, image := range []string{testenv.Busybox, testenv.Debian} {
		t.Run(image, func(t *testing.T) {
			t.Parallel()
			r, before := beginShell(t, newBox(t, image))
			r.types("echo term=$TERM\r", "term=xterm")
			r.types("stty size\r", "24 80")
			if err := unix.IoctlSetWinsize(int(r.ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 33, Col: 99}); err != nil {
				t.Fatal(err)
			}
			r.types("until stty size | grep '33 99'; do :; done\r", "33 99\r\n")
			// A job of its own says so: in the moment before it is the terminal's, a shell can lose an interrupt.
			r.types("sh -c 'echo begun; exec sleep 1000'\r", "begun\r\n")
			r.types("\x03", "$ ")
			r.types("echo bash=${BASH_VERSION:+yes}.\r", map[string]string{testenv.Busybox: "bash=.", testenv.Debian: "bash=yes."}[image])
			r.types("exit 7\r", "exit 7")
			if _, code, _ := r.wait(); code != 7 {
				t.Errorf("exit code %d", code)
			}
			r.restored(before)
		})
	}
}

// TestShellEnds: however it ends, the terminal is as it was.
func TestShellEnds(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(r *terminalRun, box string)
		code int
		said string
	}{
		"terminated": {func(r *terminalRun, _ string) { r.cmd.Process.Signal(syscall.SIGTERM) }, 143, "terminated"},
		"destroyed": {func(r *terminalRun, box string) {
			if out, err := exec.Command(testenv.Binary(r.t), "rm", box).CombinedOutput(); err != nil {
				r.t.Errorf("%v: %s", err, out)
			}
		}, exitEnvironment, "session lost"},
		"hung up": {func(r *terminalRun, _ string) { r.cmd.Process.Signal(syscall.SIGHUP) }, 129, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			box := newBox(t, testenv.Busybox)
			r, before := beginShell(t, box)
			test.end(r, box)
			shown, code, _ := r.wait()
			if code != test.code || !strings.Contains(shown, test.said) {
				t.Errorf("exit code %d: %q", code, shown)
			}
			r.restored(before)
		})
	}
}
