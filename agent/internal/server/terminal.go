//go:build linux

package server

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"golang.org/x/sys/unix"
)

// maxHeld is more than the kernel holds of what was written to a terminal
// and not read, in bytes.
const maxHeld = 64 << 10

// terminal is a pseudo-terminal. A command has its slave side as its standard
// streams; the agent reads and writes the master.
type terminal struct {
	master *os.File // waited for by the runtime's poller
	// slave is held open while the command runs: a command may close the terminal
	// and open it again, which must not look like its end.
	slave *os.File
	// unended says that what was typed last ends no line.
	unended bool
}

// openTerminal makes a terminal in the sandbox's own devpts.
func openTerminal(size *wire.WindowSize) (*terminal, error) {
	const ptmx = "/dev/ptmx"
	fd, err := unix.Open(ptmx, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ptmx, err)
	}
	t := &terminal{master: os.NewFile(uintptr(fd), ptmx)}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		// The command's end must block, and an os.File made by os.Open does not.
		slave, name := -1, fmt.Sprint("/dev/pts/", n)
		if slave, err = unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err == nil {
			t.slave = os.NewFile(uintptr(slave), name)
			err = t.resize(size)
		}
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// close hangs the terminal up.
func (t *terminal) close() {
	t.master.Close()
	t.release()
}

// release leaves the terminal to the processes that have it.
func (t *terminal) release() {
	if t.slave != nil {
		t.slave.Close()
	}
}

// control calls f with the descriptor of a file or connection.
func control(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if ctlErr := raw.Control(func(fd uintptr) { err = f(int(fd)) }); ctlErr != nil {
		return ctlErr
	}
	return err
}

// resize also sends SIGWINCH to what runs in the foreground.
func (t *terminal) resize(size *wire.WindowSize) error {
	return control(t.master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Columns})
	})
}

// attend types what the client sends and sets the sizes that it sends, until
// ctx ends.
func (c *call) attend(ctx context.Context, t *terminal) {
	defer context.AfterFunc(ctx, func() { c.stream.SetReadDeadline(past) })()
	var ending sync.WaitGroup
	defer ending.Wait()
	buf := make([]byte, 4<<10)
	for {
		frame, _, err := c.in.Next()
		if err != nil {
			return
		}
		switch frame {
		case wire.TypeData:
			for {
				n, err := c.in.Read(buf)
				if n > 0 {
					t.typed(buf[:n])
				}
				if err == io.EOF {
					break
				}
				if err != nil {
					return
				}
			}
		case wire.TypeEnd:
			ending.Go(func() { t.typeEnd(ctx) })
		case wire.TypeResize:
			var size wire.WindowSize
			if c.in.JSON(&size) != nil {
				return
			}
			t.resize(&size)
		}
	}
}

// typed types b. What cannot be typed since nobody has the terminal any more is
// no failure, as little as an input that is not read.
func (t *terminal) typed(b []byte) {
	t.master.Write(b)
	t.unended = b[len(b)-1] != '\n' && b[len(b)-1] != '\r'
}

// typeEnd types the end of input, as a person would: once what was typed has
// been read, since the character means what the terminal's mode at its arrival
// says. In a raw terminal it would be one more byte of data. A line editor, which
// reads single characters but leaves interrupts to the terminal, takes it for the
// end too, but does not get what was typed before it came: it is typed again for
// each that does.
func (t *terminal) typeEnd(ctx context.Context) {
	typed, editor := false, false
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		mode, err := t.mode()
		if err != nil {
			return
		}
		canonical := mode.Lflag&unix.ICANON != 0
		edits := !canonical && mode.Lflag&unix.ISIG != 0
		if eot := mode.Cc[unix.VEOF]; eot != 0 && !t.unread() && (canonical && !typed || edits && !editor) {
			b := []byte{eot}
			if canonical && t.unended {
				b = append(b, eot) // the first one ends the line, and the second the input
			}
			t.master.Write(b)
			typed, editor = true, edits
		}
		editor = editor && edits
	}
}

func (t *terminal) mode() (mode *unix.Termios, err error) {
	err = control(t.master, func(fd int) (err error) {
		mode, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	})
	return mode, err
}

// unread reports whether something that was typed waits for its reader.
func (t *terminal) unread() bool {
	n := 0
	control(t.slave, func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.TIOCINQ)
		return err
	})
	return n > 0
}
