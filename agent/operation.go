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
)

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

// prompt reports whether reading r never waits, so that its beginning can travel
// with the request.
func prompt(r io.Reader) bool {
	switch r.(type) {
	case *bytes.Reader, *bytes.Buffer, *strings.Reader:
		return true
	}
	return false
}
