package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
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
	bin := testenv.Binary(t)
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
	ours, theirs := openTerminal(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "--image", testenv.Busybox, "run", file)
	cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=")
	var stdout bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, &stdout, theirs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	read := make(chan string)
	go func() {
		shown, _ := io.ReadAll(ours) // ends with EIO when the program has ended
		read <- string(shown)
	}()
	cmd.Wait()
	shown := <-read
	if code := cmd.ProcessState.ExitCode(); code != 1 {
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
	if stdout.Len() > 0 {
		t.Errorf("stdout got %q", &stdout)
	}
}
