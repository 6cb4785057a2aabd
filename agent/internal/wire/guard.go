package wire

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

// Window is how many bytes a peer may send on one stream before they are read.
// The way through an engine is long, and where processors are busy each process
// on it takes its time to wake up: a transfer at full speed needs this much
// under way.
const Window = 512 << 10

// MaxStreams bounds the streams that a client opens at once, and so what a
// server holds for one session.
const MaxStreams = 4096

// maxFrame is the longest yamux data frame. A correct peer cannot send more
// than a window at once.
const maxFrame = Window

// keepOut bounds what an idle session holds on to for writing.
const keepOut = 160 << 10

// NewMux multiplexes conn. Nothing is sent at rest: there is no keepalive, since
// a paused sandbox must not lose its session. Closing the session closes conn.
//
// yamux trusts its peer in places (a goroutine for each ping, streams that the
// other side opens at will, free control frames), so what arrives goes through
// a guard that ends the session at the first frame that no correct peer sends.
func NewMux(conn io.ReadWriteCloser, client bool) (*yamux.Session, error) {
	cfg := &yamux.Config{
		AcceptBacklog:     MaxStreams,
		KeepAliveInterval: time.Hour, // not used, but must be positive
		// A write may wait for as long as the peer is paused. Whoever loses
		// patience closes the session, which ends the write at once.
		ConnectionWriteTimeout: 1000 * time.Hour,
		MaxStreamWindowSize:    Window,
		// How long a stream that the peer does not close is remembered.
		StreamCloseTimeout: time.Minute,
		Logger:             log.New(io.Discard, "", 0),
	}
	g := newGuard(conn, client)
	if client {
		return yamux.Client(g, cfg)
	}
	return yamux.Server(g, cfg)
}

const (
	muxHeader = 12
	// readAhead is how much is read from the connection at once.
	readAhead = 64 << 10
)

const (
	muxData         = 0
	muxWindowUpdate = 1
	muxPing         = 2
	muxGoAway       = 3

	flagSYN = 1
	flagACK = 2
	flagFIN = 4
	flagRST = 8
)

// guard checks the yamux frames that pass through it, and joins those that
// yamux writes one after the other and that belong together, since each write
// costs several wake-ups on the way through an engine.
type guard struct {
	io.ReadWriteCloser
	client bool

	// Reading, by one goroutine. yamux reads in small pieces.
	in     *bufio.Reader
	header [muxHeader]byte
	have   int    // bytes of header
	body   uint32 // bytes of the current frame's payload still to come

	// Writing, by one goroutine.
	out      []byte // what is held back
	wantBody bool   // the next write is the payload of the last header

	mu     sync.Mutex
	opened uint32 // highest stream id that this side has opened
	credit int64  // control frames that the peer may still send
}

// Control frames that carry nothing would cost their reader work for free. A
// correct peer sends a few for each stream (opened, closed, reset) and one for
// each half window that it has consumed.
const (
	creditPerStream = 8
	creditPerBytes  = Window / 8
	creditSpare     = 256
)

func newGuard(conn io.ReadWriteCloser, client bool) *guard {
	return &guard{ReadWriteCloser: conn, in: bufio.NewReaderSize(conn, readAhead), client: client}
}

func (g *guard) Read(p []byte) (int, error) {
	n, err := g.in.Read(p)
	if bad := g.check(p[:n]); bad != nil {
		return 0, bad
	}
	return n, err
}

func (g *guard) check(p []byte) error {
	for len(p) > 0 {
		if g.body > 0 {
			n := min(g.body, uint32(len(p)))
			g.body -= n
			p = p[n:]
			continue
		}
		n := copy(g.header[g.have:], p)
		g.have += n
		p = p[n:]
		if g.have == muxHeader {
			g.have = 0
			if err := g.frame(g.header[:]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *guard) frame(h []byte) error {
	version, typ, flags := h[0], h[1], binary.BigEndian.Uint16(h[2:])
	id, length := binary.BigEndian.Uint32(h[4:]), binary.BigEndian.Uint32(h[8:])
	bad := func(why string) error {
		return fmt.Errorf("%w: multiplexer frame % x: %s", ErrGarbled, h, why)
	}
	if version != 0 {
		return bad("unknown version")
	}
	if flags&^(flagSYN|flagACK|flagFIN|flagRST) != 0 {
		return bad("unknown flags")
	}
	switch typ {
	case muxGoAway:
		if id != 0 || flags != 0 {
			return bad("misplaced stream id or flags")
		}
	case muxData, muxWindowUpdate:
		// The client opens all streams, and yamux gives it the odd ids.
		if id%2 != 1 {
			return bad("a stream id that no client opens")
		}
		if g.client && flags&flagSYN != 0 {
			return bad("the server opened a stream")
		}
		if !g.client && flags&flagACK != 0 {
			return bad("acknowledges a stream that was not opened")
		}
		if typ == muxData && length > maxFrame {
			return bad("more than a window of data")
		}
	default:
		return bad("unknown type")
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	if g.client && typ != muxGoAway && id > g.opened {
		return bad("a stream that was not opened")
	}
	if typ == muxData {
		g.body = length
		if length > 0 {
			return nil
		}
	}
	if flags&flagSYN != 0 {
		// Only on the server. What a new stream costs is bounded by the backlog
		// and MaxStreams, and the client is the side that is trusted to work.
		g.credit += creditPerStream
	}
	if g.credit--; g.credit < -creditSpare {
		return bad("too many frames that carry nothing")
	}
	return nil
}

// Write takes one yamux header or one payload, as yamux writes them.
func (g *guard) Write(p []byte) (int, error) {
	g.out = append(g.out, p...)
	if g.wantBody || len(p) != muxHeader {
		g.wantBody = false
		return len(p), g.flush()
	}
	typ, flags := p[1], binary.BigEndian.Uint16(p[2:])
	id, length := binary.BigEndian.Uint32(p[4:]), binary.BigEndian.Uint32(p[8:])
	g.mu.Lock()
	if flags&flagSYN != 0 {
		g.opened = max(g.opened, id)
		g.credit += creditPerStream
	}
	if typ == muxData {
		g.credit += int64(length/creditPerBytes) + 1
	}
	g.mu.Unlock()
	switch {
	case typ == muxData && length > 0:
		g.wantBody = true
		return len(p), nil
	case g.client && flags&flagSYN != 0 && flags&(flagFIN|flagRST) == 0:
		// The opening of a stream is followed by its request. Holding it back
		// delays nothing, since nobody waits for it. The answer to it is another
		// thing: it tells the client that it may send more than yamux's first
		// 256 KiB.
		return len(p), nil
	}
	return len(p), g.flush()
}

func (g *guard) flush() error {
	_, err := g.ReadWriteCloser.Write(g.out)
	if g.out = g.out[:0]; cap(g.out) > keepOut {
		g.out = nil // an idle session holds no large buffer
	}
	return err
}
