//go:build linux

package server

import (
	"sync"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/provider"
)

// ring keeps the newest bytes of a background process's two outputs together.
// Memory is taken as output comes.
type ring struct {
	mu    sync.Mutex
	limit int64
	total int64
	out   [2]fifo
	// runs are the lengths of the pieces in the order in which they came,
	// alternating between the streams; first says which one the first is of.
	runs  []uint32
	first int
	last  int
	cut   [2]bool
}

func newRing(limit int64) *ring { return &ring{limit: limit} }

func (r *ring) add(s provider.Stream, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := wire.Index(s)
	if over := int64(len(data)) - r.limit; over > 0 {
		data = data[over:]
		r.cut[i] = true
	}
	if len(data) == 0 {
		return
	}
	r.out[i].push(data)
	r.total += int64(len(data))
	const maxRun = 1 << 31
	switch n := len(r.runs); {
	case n == 0:
		r.first, r.last = i, i
		r.runs = append(r.runs, uint32(len(data)))
	case r.last == i && r.runs[n-1] < maxRun:
		r.runs[n-1] += uint32(len(data))
	case r.last == i:
		r.runs = append(r.runs, 0, uint32(len(data)))
	default:
		r.last = i
		r.runs = append(r.runs, uint32(len(data)))
	}
	for r.total > r.limit {
		n := int(min(r.total-r.limit, int64(r.runs[0])))
		r.out[r.first].drop(n)
		r.cut[r.first] = r.cut[r.first] || n > 0
		r.total -= int64(n)
		if r.runs[0] -= uint32(n); r.runs[0] == 0 {
			r.runs = r.runs[1:]
			r.first = 1 - r.first
		}
	}
}

// content returns a copy of what is kept of a stream and whether older output
// was dropped.
func (r *ring) content(s provider.Stream) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := wire.Index(s)
	b := r.out[i].bytes()
	if r.cut[i] {
		b = wire.TrimHead(b)
	}
	return append([]byte(nil), b...), r.cut[i]
}

func (r *ring) size() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

// drop forgets everything, and keeps nothing of what may still come.
func (r *ring) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.out {
		r.cut[i] = r.cut[i] || len(r.out[i].bytes()) > 0
		r.out[i] = fifo{}
	}
	r.runs, r.total, r.limit = nil, 0, 0
}

// fifo is a queue of bytes.
type fifo struct {
	buf []byte
	off int
}

func (f *fifo) bytes() []byte { return f.buf[f.off:] }

func (f *fifo) push(b []byte) {
	if f.off > len(f.buf)/2 {
		n := copy(f.buf, f.buf[f.off:])
		f.buf, f.off = f.buf[:n], 0
	}
	f.buf = append(f.buf, b...)
}

func (f *fifo) drop(n int) { f.off += n }
