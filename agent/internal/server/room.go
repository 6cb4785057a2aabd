//go:build linux

package server

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// The engine moves bytes in small pieces, and with little room in the pipes
// between it and the agent each of them wakes both. But the room of all pipes of
// a user together is limited, and for root, who makes those of every container,
// that goes for the whole machine. So there is more only during a transfer.
const (
	usualRoom = 64 << 10
	bulkRoom  = 1 << 20
)

// room is how much the pipes of a session hold. Its methods are safe to call at
// once; a nil room has no pipes.
type room struct {
	pipes *stdio

	mu    sync.Mutex
	users int
	large bool
}

// more asks for room during a transfer.
func (r *room) more() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users++; !r.large {
		r.large = true
		r.pipes.resize(bulkRoom) // where it is refused the transfer takes longer
	}
}

// end is called at the end of each operation; bulky says that it has asked for
// more. Pipes that are still full keep their size, so what comes next tries again.
func (r *room) end(bulky bool) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if bulky {
		r.users--
	}
	if r.large && r.users == 0 {
		r.large = !r.pipes.resize(usualRoom)
	}
}

// resize sets the size of both pipes. It reports whether trying again is of no
// use: they have it, or are no pipes, or may not have it.
func (s *stdio) resize(size int) bool {
	ok := true
	for _, f := range []*os.File{s.in, s.out} {
		raw, err := f.SyscallConn()
		if err != nil {
			continue
		}
		raw.Control(func(fd uintptr) {
			if _, err := unix.FcntlInt(fd, unix.F_SETPIPE_SZ, size); err == unix.EBUSY {
				ok = false
			}
		})
	}
	return ok
}
