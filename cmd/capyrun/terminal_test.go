package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/capybara-hq/capyrun/internal/testenv"
)

// openTerminal returns the two ends of a pseudo-terminal of 80 x 24.
func openTerminal(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	fd := int(ours.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return ours, theirs
}

// TestTerminal runs a workflow on a terminal: there is a live tree, the cursor
// comes back, and nothing that the sandbox printed drives the terminal.
func TestTerminal(t *testing.T) {
	testenv.Image(t, testenv.Busybox)
	const attack = `\033]0;owned\007\033[2J\033[31mred\n`
	file := filepath.Join(t.TempDir(), "flow.star")
	source := `
def main():
    sb = sandbox.create(memory = "64M")
    flow.step("attack", lambda: sb.exec("printf '` + attack + `'; sleep 1; echo last line; sleep 1"))
    print("printed " + sb.exec("printf '` + attack + `'").stdout)
    sb.exec("printf '` + attack + `'; exit 1")
`
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(source, `\`, `\\`)), 0o666); err != nil {
		t.Fatal(err)
	}
	run := onTerminal(t, file)
	shown, code, stdout := run.wait()
	if code != 1 {
		t.Fatalf("exit code %d\n%s", code, shown)
	}
	for _, want := range []string{"\x1b[?25l", "\x1b[J", "attack", "red", "last line", "printed red", "\x1b[?25h", "error:"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the terminal does not show %q", want)
		}
	}
	if strings.LastIndex(shown, "\x1b[?25h") < strings.LastIndex(shown, "\x1b[?25l") {
		t.Error("the cursor is left hidden")
	}
	// What we write ourselves: the cursor, moves up, erasing below, colours.
	rest := regexp.MustCompile(`\x1b\[(\?25[lh]|\d+A|J|[\d;]*m)`).ReplaceAllString(shown, "")
	if i := strings.IndexAny(rest, "\x1b\a"); i >= 0 {
		t.Errorf("a control sequence came through: %q", rest[i:min(i+40, len(rest))])
	}
	for _, bad := range []string{"\x1b[2J", "\x1b[31mred"} {
		if strings.Contains(shown, bad) {
			t.Errorf("%q came through", bad)
		}
	}
	if stdout != "" {
		t.Errorf("stdout got %q", stdout)
	}
}

// TestTerminalAfterTwoSignals: whoever leaves at once gets a whole terminal back.
func TestTerminalAfterTwoSignals(t *testing.T) {
	file := filepath.Join(t.TempDir(), "flow.star")
	source := `
def main():
    flow.defer(lambda: print("cleaning up") or flow.sleep("50s"))
    print("working")
    flow.sleep("50s")
`
	if err := os.WriteFile(file, []byte(source), 0o666); err != nil {
		t.Fatal(err)
	}
	run := onTerminal(t, file)
	run.await("working")
	run.cmd.Process.Signal(os.Interrupt)
	run.await("interrupted: stopping; press Ctrl-C again to leave at once")
	run.await("cleaning up")
	run.cmd.Process.Signal(os.Interrupt)
	shown, code, _ := run.wait()
	if code != 130 {
		t.Errorf("exit code %d", code)
	}
	if i := strings.LastIndex(shown, "\x1b[?25h"); i < 0 || i < strings.LastIndex(shown, "\x1b[?25l") {
		t.Errorf("the cursor is left hidden: %q", shown)
	}
	if !strings.Contains(shown, "left at once") {
		t.Errorf("it does not say that it left: %q", shown)
	}
}

// terminalRun is capyrun on a pseudo-terminal.
type terminalRun struct {
	t      *testing.T
	cmd    *exec.Cmd
	ours   *os.File     // the terminal's other end
	stdout bytes.Buffer // where that is not the terminal too
	shown  string
	reads  chan string // closed at the end of the program
}

// onTerminal begins "capyrun run", with a stdout of its own.
func onTerminal(t *testing.T, file string) *terminalRun {
	return beginOnTerminal(t, false, "--image", testenv.Busybox, "run", file)
}

// beginOnTerminal begins capyrun. With stdout on the terminal too, the terminal
// is also the one that controls it: signals come from there.
func beginOnTerminal(t *testing.T, stdout bool, args ...string) *terminalRun {
	t.Helper()
	ours, theirs := openTerminal(t)
	defer theirs.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	r := &terminalRun{t: t, ours: ours, reads: make(chan string)}
	r.cmd = exec.CommandContext(ctx, testenv.Binary(t), args...)
	r.cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=")
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = theirs, &r.stdout, theirs
	if stdout {
		r.cmd.Stdout = theirs
		r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.reads)
		buf := make([]byte, 4096)
		for {
			n, err := ours.Read(buf)
			if err != nil {
				return // EIO when the program has ended
			}
			r.reads <- string(buf[:n])
		}
	}()
	return r
}

// await reads what is shown until it contains text.
func (r *terminalRun) await(text string) {
	r.t.Helper()
	for !strings.Contains(r.shown, text) {
		more, ok := <-r.reads
		if !ok {
			r.t.Fatalf("%q was never shown: %q", text, r.shown)
		}
		r.shown += more
	}
}

// wait returns all that was shown, the exit code, and stdout.
func (r *terminalRun) wait() (shown string, code int, stdout string) {
	for more := range r.reads {
		r.shown += more
	}
	r.cmd.Wait()
	return r.shown, r.cmd.ProcessState.ExitCode(), r.stdout.String()
}
