//go:build linux

package server

import (
	"slices"
	"sync"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/provider"
)

// ring keeps the newest bytes of a background process's two outputs together.
// Memory is taken as output comes.
type ring struct {
	mu    sync.Mutex
	limit int64
	out   [2]fifo
	// dropped counts the bytes of each stream that are no longer kept.
	dropped [2]int64
	// ends are where the pieces end, in the order in which they came, counted in
	// bytes of both streams since the start. They alternate between the streams;
	// first says which one the first is of.
	ends  []int64
	first int
	more  chan struct{} // closed when output comes; nil: nobody waits for it
}

func newRing(limit int64) *ring { return &ring{limit: limit} }

func (r *ring) add(s provider.Stream, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(data) == 0 {
		return
	}
	i, n := wire.Index(s), len(r.ends)
	r.out[i].push(data)
	switch end := r.start() + r.total(); {
	case n == 0:
		r.first, r.ends = i, append(r.ends, end)
	case r.stream(n-1) == i:
		r.ends[n-1] = end
	default:
		r.ends = append(r.ends, end)
	}
	r.shorten()
	if r.more != nil {
		close(r.more)
		r.more = nil
	}
}

// shorten drops what is beyond the limit.
func (r *ring) shorten() {
	for over := r.total() - r.limit; over > 0; over = r.total() - r.limit {
		n := min(over, r.ends[0]-r.start())
		r.out[r.first].drop(int(n))
		r.dropped[r.first] += n
		if r.ends[0] == r.start() {
			r.ends = r.ends[1:]
			r.first = 1 - r.first
		}
	}
}

// start is the place of the oldest byte that is kept, among those of both
// streams.
func (r *ring) start() int64 { return r.dropped[0] + r.dropped[1] }

func (r *ring) total() int64 { return int64(len(r.out[0].bytes()) + len(r.out[1].bytes())) }

// stream is the index of the stream that piece n is of.
func (r *ring) stream(n int) int { return (r.first + n) % 2 }

// end is the place behind the newest byte.
func (r *ring) end() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.start() + r.total()
}

// follower reads a ring while it is written to.
type follower struct {
	ring *ring
	at   [2]int64 // bytes of each stream that it has passed
	cut  [2]bool  // some of them without getting them
	torn [2]bool  // the next may begin within a character
}

// next fills buf with what comes next, up to the given end. Where there is
// nothing it returns a channel that is closed when there may be.
func (f *follower) next(buf []byte, end int64) (s provider.Stream, data []byte, more <-chan struct{}) {
	r := f.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.at[0]+f.at[1] < r.start() {
		// The ring drops in the order in which this reads, so of neither stream
		// has this passed more than was dropped.
		for i := range f.at {
			missed := f.at[i] < r.dropped[i]
			f.cut[i], f.torn[i] = f.cut[i] || missed, f.torn[i] || missed
		}
		f.at = r.dropped
	}
	at := f.at[0] + f.at[1]
	if end = min(end, r.start()+r.total()); at >= end {
		if r.more == nil {
			r.more = make(chan struct{})
		}
		return provider.Stdout, nil, r.more
	}
	n, _ := slices.BinarySearch(r.ends, at+1) // the piece that holds the place
	i := r.stream(n)
	size := min(int64(len(buf)), min(end, r.ends[n])-at)
	data = buf[:copy(buf, r.out[i].bytes()[f.at[i]-r.dropped[i]:][:size])]
	f.at[i] += size
	if f.torn[i] {
		data, f.torn[i] = wire.TrimHead(data), false
	}
	return streams[i], data, nil
}

// streams are the streams by [wire.Index].
var streams = [2]provider.Stream{provider.Stdout, provider.Stderr}

// content returns a copy of what is kept of a stream and whether older output
// was dropped.
func (r *ring) content(s provider.Stream) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := wire.Index(s)
	b, cut := r.out[i].bytes(), r.dropped[i] > 0
	if cut {
		b = wire.TrimHead(b)
	}
	return append([]byte(nil), b...), cut
}

func (r *ring) size() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total()
}

// drop forgets everything, and keeps nothing of what may still come.
func (r *ring) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limit = 0
	r.shorten()
	r.out, r.ends = [2]fifo{}, nil
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
