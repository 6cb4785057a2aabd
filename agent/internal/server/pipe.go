//go:build linux

package server

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// outPipe reads one output of a command to its end.
type outPipe struct {
	file     *os.File
	terminal bool // it is a terminal's master
	// eof is closed when nothing writes to the pipe any more.
	eof chan struct{}
	// enough is closed when all that was in the pipe at the time of settle has
	// been given to the sink.
	enough chan struct{}

	mu        sync.Mutex
	got       int64 // bytes read
	delivered int64 // bytes given to the sink
	want      int64 // -1: settle was not called
}

// readBuffers are shared by all pipes: a command that prints nothing holds none.
var readBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

func newOutPipe(f *os.File, terminal bool, sink func([]byte)) *outPipe {
	p := &outPipe{file: f, terminal: terminal, eof: make(chan struct{}), enough: make(chan struct{}), want: -1}
	go p.run(sink)
	return p
}

func (p *outPipe) run(sink func([]byte)) {
	defer close(p.eof)
	defer p.file.Close()
	raw, err := p.file.SyscallConn()
	if err != nil {
		return
	}
	for {
		var buf *[32 << 10]byte
		n := 0
		err := raw.Read(func(fd uintptr) bool {
			buf = readBuffers.Get().(*[32 << 10]byte)
			p.mu.Lock()
			defer p.mu.Unlock()
			var err error
			for {
				n, err = syscall.Read(int(fd), buf[:])
				if err != syscall.EINTR {
					break
				}
			}
			if err == syscall.EAGAIN {
				readBuffers.Put(buf)
				buf = nil
				p.emptied()
				return false
			}
			if n > 0 {
				p.got += int64(n)
			}
			return true
		})
		if err == nil && n > 0 {
			sink(buf[:n])
		}
		if buf != nil {
			readBuffers.Put(buf)
		}
		if err != nil || n <= 0 {
			return
		}
		p.mu.Lock()
		p.delivered += int64(n)
		p.checkEnough()
		p.mu.Unlock()
	}
}

// settle notes what is in the pipe now, as what must be delivered at least.
func (p *outPipe) settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.want >= 0 {
		return
	}
	p.want = p.got
	if raw, err := p.file.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			if p.terminal {
				// The kernel does not tell how much a terminal holds, only whether.
				if readable(int(fd)) {
					p.want += maxHeld
				}
				return
			}
			if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
				p.want += int64(n)
			}
		})
	}
	p.checkEnough()
}

func readable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// emptied notes that there is nothing more to read at present; p.mu is held.
func (p *outPipe) emptied() {
	if p.terminal && p.want > p.got {
		p.want = p.got
		p.checkEnough()
	}
}

func (p *outPipe) checkEnough() {
	if p.want < 0 || p.delivered < p.want {
		return
	}
	select {
	case <-p.enough:
	default:
		close(p.enough)
	}
}

// drain returns when the output of an ended command is complete, as far as it
// can be told: at the end of its pipes or, where something else keeps one
// open, after [drainGrace]; and never before all has been delivered that the
// command itself had printed.
func (c *command) drain(ctx context.Context) {
	outputs := []*outPipe{c.stdout}
	if c.stderr != nil {
		outputs = append(outputs, c.stderr)
	}
	for _, p := range outputs {
		p.settle()
	}
	grace := time.NewTimer(drainGrace)
	defer grace.Stop()
	expired := false
	for _, p := range outputs {
		if !expired {
			select {
			case <-p.eof:
				continue
			case <-ctx.Done():
				return
			case <-grace.C:
				expired = true
			}
		}
		select {
		case <-p.eof:
		case <-p.enough:
		case <-ctx.Done():
			return
		}
	}
}
