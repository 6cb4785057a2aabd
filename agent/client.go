package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/provider"
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

// broken returns why the client is dead, where an operation has seen err.
func (c *client) broken(err error) error {
	if errors.Is(err, wire.ErrGarbled) {
		c.fail(err)
	}
	if !c.ended() {
		// The agent has closed a stream in the middle of an operation, which it
		// does for no reason.
		c.fail(fmt.Errorf("%w: an operation's stream ended: %w", wire.ErrGarbled, err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
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

// request is an operation to begin.
type request struct {
	wire.Request
	input io.Reader // sent as data frames where Request.Input is set
	// resize gives what is sent as resize frames. Nil: none.
	resize <-chan provider.WindowSize
	// timeout is how long the agent may take without a reason to worry. 0: any
	// time, until it is cancelled.
	timeout time.Duration
	// quiet is called when nothing is heard of the operation for a while. It may
	// be nil.
	quiet func(context.Context)
	// reachable is called when an answer is overdue; an error gives the client up.
	// It may be nil.
	reachable func(context.Context) error
	// unable is called with the reason when the agent has taken too long, or could
	// not end what it had to; then the client is given up. It may be nil.
	unable func(*client, error)
}

// operation is one that goes on.
type operation struct {
	c      *client
	s      *stream
	number uint64
	ctx    context.Context
	cancel context.CancelCauseFunc
	stop   func() bool // undoes the watch over ctx
	watch  *time.Timer
	looked atomic.Bool   // the agent could be reached when the answer was overdue
	quiet  *time.Timer   // runs until the agent is heard; nil: nobody wants to know
	pumped chan struct{} // closed when the input has been sent; nil: none is
	last   bool          // the stream takes no more requests
	// sending is held while frames are sent that follow the request.
	sending sync.Mutex
	// busy is set while the caller's code runs: it is not the agent then that
	// takes its time.
	busy atomic.Bool
	done atomic.Bool
}

// begin sends a request. Where it fails with [errUnsent] nothing has happened.
func (c *client) begin(ctx context.Context, req *request) (*operation, error) {
	if !c.alive() {
		return nil, errUnsent
	}
	s, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	req.Call = c.calls.Add(1)
	if !s.out.JSON(wire.TypeRequest, &req.Request) {
		c.release(s, true)
		return nil, errTooLong
	}
	o := &operation{c: c, s: s, number: req.Call, last: req.Op == wire.OpTerminal}
	o.ctx, o.cancel = context.WithCancelCause(ctx)
	// Sending may have to wait too, so this watches over it already.
	o.watch = time.AfterFunc(time.Hour, func() { o.overdue(req) })
	if req.timeout > 0 {
		o.watch.Reset(req.timeout + overdueBound)
	} else {
		o.watch.Stop()
	}
	if req.quiet != nil {
		o.quiet = time.AfterFunc(quietBound, func() { req.quiet(o.ctx) })
	}
	o.stop = context.AfterFunc(o.ctx, func() {
		o.looked.Store(false)
		o.watch.Reset(overdueBound)
		o.stopCall()
	})
	inputLeft := req.Input
	if req.Input && prompt(req.input) {
		inputLeft = o.sendPart(req.input) == nil
	}
	if err := s.out.Flush(); err != nil {
		o.end(false)
		return nil, o.lost(err)
	}
	if inputLeft {
		o.pumped = make(chan struct{})
		go o.pump(req.input)
	}
	if req.resize != nil {
		go o.resizes(req.resize)
	}
	return o, nil
}

// promptInput is how much of an input travels with its request.
const promptInput = 32 << 10

// sendPart reads from an input that does not wait, and adds what comes to what
// is sent next.
// io.EOF means that the end was added too; any other error has cancelled the
// operation.
func (o *operation) sendPart(input io.Reader) error {
	buf := make([]byte, promptInput)
	n, err := io.ReadFull(input, buf)
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	o.s.out.Raw(wire.TypeData, buf[:n])
	switch err {
	case nil:
	case io.EOF:
		o.s.out.Frame(wire.TypeEnd, nil)
	default:
		o.cancel(fmt.Errorf("read the input: %w", err))
	}
	return err
}

// pump sends the input. It ends when the stream is closed, and where the
// input's Read waits for ever, so does it.
func (o *operation) pump(input io.Reader) {
	buf := make([]byte, wire.MaxData)
	for {
		n, err := input.Read(buf)
		if !o.send(func(w *wire.Writer) {
			w.Raw(wire.TypeData, buf[:n])
			if err == io.EOF {
				w.Frame(wire.TypeEnd, nil)
			}
		}) {
			return
		}
		if err == io.EOF {
			close(o.pumped)
			return
		}
		if err != nil {
			o.cancel(fmt.Errorf("read the input: %w", err))
			return
		}
	}
}

// send sends the frames that add adds. It reports false when there is no more
// use in sending.
func (o *operation) send(add func(*wire.Writer)) bool {
	o.sending.Lock()
	defer o.sending.Unlock()
	if o.done.Load() {
		return false
	}
	add(o.s.out)
	return o.s.out.Flush() == nil
}

// resizes sends the sizes of a terminal until the operation ends.
func (o *operation) resizes(sizes <-chan provider.WindowSize) {
	for {
		select {
		case size, more := <-sizes:
			if !more || !o.send(func(w *wire.Writer) { w.JSON(wire.TypeResize, window(size)) }) {
				return
			}
		case <-o.ctx.Done():
			return
		}
	}
}

// overdue is called when the agent should have answered.
func (o *operation) overdue(req *request) {
	if o.done.Load() {
		return
	}
	if !o.looked.Swap(true) {
		if req.reachable != nil {
			if err := req.reachable(context.WithoutCancel(o.ctx)); err != nil {
				o.c.fail(&unreachableError{err})
				return
			}
		}
		o.watch.Reset(patience)
		return
	}
	if o.busy.Load() {
		o.watch.Reset(patience)
		return
	}
	if req.unable != nil {
		req.unable(o.c, errUnanswered)
	}
	o.c.fail(errUnanswered)
}

// stopCall asks the agent to stop the operation until that is done. Streams
// race with one another, so the agent may not have seen the operation yet.
func (o *operation) stopCall() {
	for pause := time.Millisecond; !o.done.Load(); pause = min(2*pause, 100*time.Millisecond) {
		if o.c.cancelCall(o.number) {
			return
		}
		select {
		case <-o.c.dead:
			return
		case <-time.After(pause):
		}
	}
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

// next returns the next frame. After [wire.TypeFinal] the operation is over.
func (o *operation) next() (wire.Type, int, error) {
	t, n, err := o.s.in.Next()
	if err != nil {
		return 0, 0, o.lost(err)
	}
	o.heard()
	return t, n, nil
}

// heard ends the wait for the agent's first word.
func (o *operation) heard() {
	if o.quiet != nil {
		o.quiet.Stop()
	}
}

// lost turns an error of the stream into why the client is dead.
func (o *operation) lost(err error) error { return &lostError{o.c, o.c.broken(err)} }

// final reads the response.
func (o *operation) final() (*wire.Response, error) {
	var r wire.Response
	if err := o.s.in.JSON(&r); err != nil {
		return nil, o.lost(err)
	}
	return &r, nil
}

// end gives the stream back; clean says that the final frame was read.
func (o *operation) end(clean bool) {
	o.done.Store(true)
	if !o.stop() {
		clean = false // a cancellation may be under way
	}
	o.watch.Stop()
	o.heard()
	clean = clean && !o.last
	if o.pumped != nil {
		select {
		case <-o.pumped:
		default:
			clean = false // the rest of the input would be taken for a request
		}
	}
	o.c.release(o.s, clean)
	o.cancel(nil)
}

// call performs a whole operation. onFrame gets every frame before the final
// one.
func (c *client) call(ctx context.Context, req *request, onFrame func(*operation, wire.Type, int) error) (*wire.Response, error) {
	o, err := c.begin(ctx, req)
	if err != nil {
		return nil, err
	}
	clean := false
	defer func() { o.end(clean) }()
	for {
		t, n, err := o.next()
		if err != nil {
			return nil, err
		}
		if t == wire.TypeFinal {
			resp, err := o.final()
			clean = err == nil
			if err == nil && resp.Unended && req.unable != nil {
				err := errors.New("the agent failed")
				if resp.Error != nil {
					err = fmt.Errorf("the agent failed to %w", resp.Error.Decode())
				}
				req.unable(c, err)
				c.fail(err)
				clean = false
				return nil, o.lost(err)
			}
			if err == nil && resp.Error != nil {
				if cause := context.Cause(o.ctx); cause != nil {
					return resp, cause
				}
			}
			return resp, err
		}
		if onFrame == nil {
			continue
		}
		if err := onFrame(o, t, n); err != nil {
			return nil, err
		}
	}
}

// lostError is a client that broke in the middle of an operation or, where c is
// nil, a connection that did not become one.
type lostError struct {
	c     *client
	cause error
}

func (e *lostError) Error() string { return e.cause.Error() }
func (e *lostError) Unwrap() error { return e.cause }

// unreachableError is why an operation was given up without waiting for the
// agent. There is nobody to explain it.
type unreachableError struct{ error }

func (e *unreachableError) Unwrap() error { return e.error }

// prompt reports whether reading r never waits, so that its beginning can travel
// with the request.
func prompt(r io.Reader) bool {
	switch r.(type) {
	case *bytes.Reader, *bytes.Buffer, *strings.Reader:
		return true
	}
	return false
}

// explain asks f why a connection broke: once for each client, so that everybody
// who has lost it waits for the same answer.
func (e *lostError) explain(ctx context.Context, f func(context.Context, error) error) error {
	if f == nil || e.cause == errClosed || errors.As(e.cause, new(*unreachableError)) {
		return e.cause
	}
	ask := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), explainBound)
		defer cancel()
		if why := f(ctx, e.cause); why != nil {
			return why
		}
		return e.cause
	}
	if e.c == nil {
		return ask()
	}
	e.c.explained.Do(func() { e.c.explanation = ask() })
	return e.c.explanation
}

const explainBound = 5 * time.Second
