//go:build linux

// Package server is the agent's side that runs in a sandbox: it runs commands,
// works on files and answers the operations of package wire. Its clients are
// trusted to ask for anything that the sandbox's own code may do; the commands
// that it runs are not trusted at all.
package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/hashicorp/yamux"
)

// Server answers the operations of any number of sessions. Its methods are
// safe to call at once.
type Server struct {
	files *files
	cmds  *commands // nil: no commands, only changes of files
	owner *owner    // nil: nobody counts the sessions
}

// NewFiles returns a server that only changes files below the given places.
func NewFiles(places []Place) *Server {
	return &Server{files: newFiles(places, true)}
}

// errSessionOver is the cause that ends what a session's client has begun.
var errSessionOver = errors.New("the client is gone")

// errCanceled is the cause of an operation that its client has cancelled.
var errCanceled = fmt.Errorf("cancelled by the client: %w", context.Canceled)

// Serve speaks with one client until either side ends the session, stops what
// that client left running in the foreground, and closes conn.
func (s *Server) Serve(conn io.ReadWriteCloser) error {
	defer conn.Close()
	if err := wire.WriteHello(conn, wire.Hello{Version: wire.Version, PID: os.Getpid()}); err != nil {
		return err
	}
	if _, err := wire.ReadHello(conn); err != nil {
		return err
	}
	mux, err := wire.NewMux(conn, false)
	if err != nil {
		return err
	}
	defer mux.Close()
	if s.owner != nil {
		s.owner.enter()
		defer s.owner.leave()
	}

	ctx, cancel := context.WithCancelCause(context.Background())
	ss := &session{server: s, ctx: ctx, calls: map[uint64]context.CancelCauseFunc{}}
	if pipes, ok := conn.(*stdio); ok {
		ss.room = &room{pipes: pipes}
	}
	defer ss.streams.Wait()
	defer cancel(errSessionOver)
	slots := make(chan struct{}, wire.MaxStreams)
	for {
		st, err := mux.AcceptStream()
		if err != nil {
			return err
		}
		select {
		case slots <- struct{}{}:
		default:
			st.Close() // the client keeps to the limit; this one does not
			continue
		}
		ss.streams.Go(func() {
			defer func() { <-slots }()
			ss.serve(st)
		})
	}
}

// session is one client.
type session struct {
	server  *Server
	ctx     context.Context
	streams sync.WaitGroup
	room    *room // nil: not over pipes

	mu    sync.Mutex
	calls map[uint64]context.CancelCauseFunc
}

// serve answers the operations of one stream, one after the other.
func (ss *session) serve(st *yamux.Stream) {
	defer st.Close()
	c := &call{session: ss, stream: st, in: wire.NewReader(st), out: wire.NewWriter(st)}
	for {
		t, _, err := c.in.Next()
		if err != nil {
			return
		}
		if t != wire.TypeRequest {
			continue // unknown frames are tolerated
		}
		c.req = wire.Request{}
		if err := c.in.JSON(&c.req); err != nil {
			return
		}
		if !c.run() {
			return
		}
		if c.reading != nil {
			<-c.reading
			c.reading = nil
		}
		c.out.Shrink()
		st.Shrink()
	}
}

// call is one operation.
type call struct {
	session *session
	stream  *yamux.Stream
	in      *wire.Reader
	out     *wire.Writer
	req     wire.Request
	ended   bool // the end frame of the input was read
	last    bool // the stream takes no more requests
	// reading is closed when the input is no longer read from the stream; nil:
	// it is not.
	reading chan struct{}
	// unwatch ends what [call.input] has set on the operation's end; nil: nothing.
	unwatch func() bool
	moved   int  // bytes of a file operation's data
	bulky   bool // it has been given more room
}

// run performs the operation and reports whether the stream goes on. What is
// left of the operation's input is skipped before the next request; a client
// that has not sent it all closes the stream. The server never closes one in
// good order, since the client may be about to use it again.
func (c *call) run() bool {
	ss := c.session
	ctx, cancel := context.WithCancelCause(ss.ctx)
	defer cancel(nil)
	if c.req.Call != 0 {
		ss.mu.Lock()
		ss.calls[c.req.Call] = cancel
		ss.mu.Unlock()
		defer func() {
			ss.mu.Lock()
			delete(ss.calls, c.req.Call)
			ss.mu.Unlock()
		}()
	}
	c.ended, c.unwatch = !c.req.Input, nil
	c.moved, c.bulky = 0, false
	defer func() { ss.room.end(c.bulky) }()
	resp := c.do(ctx)
	if c.unwatch != nil {
		c.unwatch()
	}
	if resp == nil {
		return false // it has taken the stream over
	}
	if !c.out.JSON(wire.TypeFinal, resp) {
		c.out.JSON(wire.TypeFinal, failure(errors.New("the answer is too long")))
	}
	return c.out.Flush() == nil && !c.last
}

func (c *call) do(ctx context.Context) *wire.Response {
	s, req := c.session.server, &c.req
	switch req.Op {
	case wire.OpPing:
		return &wire.Response{}
	case wire.OpCancel:
		ss := c.session
		ss.mu.Lock()
		cancel := ss.calls[req.Target]
		ss.mu.Unlock()
		if cancel == nil {
			return &wire.Response{} // it has ended, or has not begun
		}
		cancel(errCanceled)
		return &wire.Response{Count: 1}
	case wire.OpWrite:
		return reply(s.files.write(ctx, req, counted{c.input(ctx), c}))
	case wire.OpMkdir:
		return reply(s.files.mkdir(req))
	case wire.OpRemove:
		return reply(s.files.remove(ctx, req))
	case wire.OpRename:
		return reply(s.files.rename(ctx, req))
	case wire.OpUpload:
		return reply(s.files.upload(ctx, req, counted{c.input(ctx), c}))
	}
	if s.cmds == nil {
		return failure(fmt.Errorf("%w: operation %q", provider.ErrUnsupported, req.Op))
	}
	switch req.Op {
	case wire.OpRead:
		return c.read(ctx)
	case wire.OpStat:
		return c.stat()
	case wire.OpReadDir:
		return reply(c.readDir(ctx))
	case wire.OpGlob:
		return reply(c.glob(ctx))
	case wire.OpDownload:
		return reply(c.download(ctx))
	case wire.OpExec, wire.OpTerminal:
		return c.exec(ctx)
	case wire.OpStart:
		return c.start()
	case wire.OpFind:
		return c.find()
	case wire.OpList:
		return c.list()
	case wire.OpWait:
		return c.wait(ctx)
	case wire.OpOutput:
		return c.output()
	case wire.OpFollow:
		return c.follow(ctx)
	case wire.OpSignal:
		return c.signal()
	case wire.OpInput:
		return reply(c.feed(ctx))
	case wire.OpNoInput:
		return reply(c.closeInput())
	case wire.OpKill:
		return c.kill()
	case wire.OpKillAll:
		return c.killAll()
	case wire.OpDial:
		return c.dial(ctx)
	case wire.OpStats:
		return c.stats(ctx)
	}
	return failure(fmt.Errorf("%w: operation %q", provider.ErrUnsupported, req.Op))
}

// moves counts the data of a file operation: a transfer has more room.
func (c *call) moves(n int) {
	if c.moved += n; c.moved >= bulk && !c.bulky {
		c.bulky = true
		c.session.room.more()
	}
}

// counted is an input whose data counts.
type counted struct {
	io.Reader
	call *call
}

func (r counted) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.call.moves(n)
	return n, err
}

func failure(err error) *wire.Response { return &wire.Response{Error: wire.EncodeError(err)} }

// unended is the failure to end processes.
func unended(err error) *wire.Response {
	resp := failure(fmt.Errorf("end the processes: %w", err))
	resp.Unended = true
	return resp
}

func reply(err error) *wire.Response {
	if err != nil {
		return failure(err)
	}
	return &wire.Response{}
}

// input returns the data that the client sends with the operation. It fails
// when ctx ends.
func (c *call) input(ctx context.Context) io.Reader {
	if c.ended {
		return eofReader{}
	}
	// The deadline also ends a read that waits for a client that sends nothing.
	c.unwatch = context.AfterFunc(ctx, func() { c.stream.SetReadDeadline(past) })
	return &input{call: c, ctx: ctx}
}

type eofReader struct{}

func (eofReader) Read([]byte) (int, error) { return 0, io.EOF }

type input struct {
	call *call
	ctx  context.Context
}

func (i *input) Read(p []byte) (int, error) {
	c := i.call
	for {
		if c.ended {
			return 0, io.EOF
		}
		n, err := c.in.Read(p)
		if n > 0 || len(p) == 0 {
			return n, nil
		}
		if err == io.EOF { // of the frame
			var t wire.Type
			t, _, err = c.in.Next()
			switch {
			case err == io.EOF:
				err = io.ErrUnexpectedEOF
			case err == nil && t == wire.TypeEnd:
				c.ended = true
			case err == nil && t == wire.TypeRequest:
				err = fmt.Errorf("%w: a request within another's input", wire.ErrGarbled)
			case err == nil && t != wire.TypeData:
				_, err = c.in.Payload() // unknown, tolerated
			}
		}
		if err != nil {
			if cause := context.Cause(i.ctx); cause != nil {
				err = cause
			}
			return 0, err
		}
	}
}
