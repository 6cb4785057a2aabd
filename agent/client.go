package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/hashicorp/yamux"
)

// patience is how long an agent may take to answer when it must: after a
// command's deadline, and after a cancellation. Tests have less of it.
var patience = 15 * time.Second

const (
	// greetingBound is how long a greeting may take.
	greetingBound = 30 * time.Second
	// overdueBound is how long an answer may be overdue before the provider is
	// asked whether the agent can be reached.
	overdueBound = 300 * time.Millisecond
	// quietBound is how long an operation may go on without a word before the
	// provider is asked to look at the sandbox.
	quietBound = time.Second
	// maxIdle is how many streams wait for the next operation.
	maxIdle = 64
)

var (
	errClosed     = errors.New("the session was closed")
	errUnanswered = errors.New("the agent does not answer")
	// errUnsent says that nothing of an operation was sent, so it may be tried
	// with another client.
	errUnsent = errors.New("nothing was sent")
)

// client is one connection to an agent. When it breaks it is dead for good.
type client struct {
	mux   *yamux.Session
	calls atomic.Uint64
	slots chan struct{} // one for each open stream

	mu    sync.Mutex
	idle  []*stream
	cause error // why it is dead

	recovered   sync.Once
	recoverErr  error
	explained   sync.Once
	explanation error

	dead chan struct{} // closed when it is
	gone chan struct{} // closed when its goroutines have ended
}

// stream carries operations, one after the other.
type stream struct {
	*yamux.Stream
	in  *wire.Reader
	out *wire.Writer
}

// newClient greets the agent at the other end of conn. It closes conn on
// failure.
func newClient(ctx context.Context, conn io.ReadWriteCloser) (*client, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, greetingBound, errUnanswered)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	// Both sides greet first, and a stream need not hold anything.
	written := make(chan error, 1)
	go func() { written <- wire.WriteHello(conn, wire.Hello{Version: wire.Version}) }()
	_, err := wire.ReadHello(conn)
	if err != nil {
		conn.Close() // also ends the writing
	}
	if writeErr := <-written; err == nil {
		err = writeErr
	}
	if !stop() {
		return nil, fmt.Errorf("open a session: %w", context.Cause(ctx))
	}
	var mux *yamux.Session
	if err == nil {
		mux, err = wire.NewMux(conn, true)
	}
	if err != nil {
		conn.Close()
		return nil, &lostError{cause: fmt.Errorf("open a session: %w", err)}
	}
	c := &client{mux: mux, slots: make(chan struct{}, wire.MaxStreams), dead: make(chan struct{}), gone: make(chan struct{})}
	go func() {
		// An agent opens no streams, so this waits for the end and its reason.
		_, err := mux.AcceptStream()
		c.fail(err)
		mux.Close()
		close(c.gone)
	}()
	return c, nil
}

// fail ends the client; the first cause counts.
func (c *client) fail(cause error) {
	c.mu.Lock()
	if c.cause == nil {
		if cause == io.EOF {
			cause = io.ErrUnexpectedEOF
		}
		c.cause = cause
		close(c.dead)
	}
	c.idle = nil
	c.mu.Unlock()
	go c.mux.Close() // waits for its goroutines, and may be called by one
}

func (c *client) alive() bool {
	select {
	case <-c.dead:
		return false
	default:
		return !c.mux.IsClosed()
	}
}

// ended reports whether the client is dead, where a stream has failed: that comes
// a moment before its cause is noted.
func (c *client) ended() bool {
	select {
	case <-c.dead:
	case <-c.mux.CloseChan():
		<-c.dead
	default:
		return false
	}
	return true
}

// open returns a stream for one operation.
func (c *client) open(ctx context.Context) (*stream, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		s := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return s, nil
	}
	c.mu.Unlock()
	select {
	case c.slots <- struct{}{}:
	case <-c.dead:
		return nil, errUnsent
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	st, err := c.mux.OpenStream()
	if err != nil {
		<-c.slots
		if c.alive() {
			c.fail(err)
		}
		return nil, errUnsent
	}
	return &stream{Stream: st, in: wire.NewReader(st), out: wire.NewWriter(st)}, nil
}

// release takes a stream back. reusable says that nothing more will come on it.
func (c *client) release(s *stream, reusable bool) {
	if reusable {
		s.out.Shrink()
		s.Shrink()
		c.mu.Lock()
		if c.cause == nil && len(c.idle) < maxIdle {
			c.idle = append(c.idle, s)
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
	s.Close()
	<-c.slots
}

// cancelCall asks the agent to stop an operation and reports whether the agent
// knows it.
func (c *client) cancelCall(number uint64) bool {
	s, err := c.open(context.Background())
	if err != nil {
		return false
	}
	clean := false
	defer func() { c.release(s, clean) }()
	s.out.JSON(wire.TypeRequest, &wire.Request{Op: wire.OpCancel, Target: number})
	if s.out.Flush() != nil {
		return false
	}
	for {
		t, _, err := s.in.Next()
		if err != nil {
			return false
		}
		if t == wire.TypeFinal {
			var r wire.Response
			clean = s.in.JSON(&r) == nil
			return r.Count > 0
		}
	}
}
