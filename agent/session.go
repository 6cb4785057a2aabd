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
	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
)

// SessionConfig is what a [Session] needs from a provider. The functions are
// called from any goroutine, and each by one at a time.
type SessionConfig struct {
	// Sandbox is the sandbox's name, for errors.
	Sandbox string
	// Dial opens a stream to the sandbox's first process, which it starts or
	// resumes where needed. It is called when an operation finds no live
	// connection. The session closes the stream.
	Dial func(ctx context.Context) (io.ReadWriteCloser, error)
	// Files opens a stream to the server of [FilesArgs], for changes under
	// /skills. Nil: there are none.
	Files func(ctx context.Context) (io.ReadWriteCloser, error)
	// Reachable returns an error, in less than a second, if nothing can answer at
	// present. It is called when an agent has not answered in time: one that
	// cannot be reached is not waited for: the operation fails with the error and
	// [provider.ErrSessionLost], and so does whatever else goes on over the
	// connection. Nil: the agent can be reached.
	Reachable func(ctx context.Context) error
	// Recover ends everything in the sandbox when the agent does not answer or
	// could not end what it was told to.
	// Nil: the connection is given up, and what runs may go on.
	Recover func(ctx context.Context) error
	// Quiet is called, at most once for each operation, when nothing was heard of
	// it for a second: it may just take its time, or the sandbox may have been
	// paused behind the session's back. ctx ends with the operation. Nil: nothing
	// is done.
	Quiet func(ctx context.Context)
	// Explain turns the error of a broken stream into why it broke. Nil: as it
	// is.
	Explain func(ctx context.Context, cause error) error
}

// Session is the operations within one running sandbox, over one connection at
// a time: it reconnects when an operation finds the connection broken. An
// operation during which the connection breaks fails with
// [provider.ErrSessionLost] and is never tried again, since nobody knows how far
// it came. All methods are safe to call at once.
type Session struct {
	cfg    SessionConfig
	main   link
	skills link
}

// NewSession returns a session that connects when it is first used.
func NewSession(cfg SessionConfig) *Session {
	s := &Session{cfg: cfg}
	s.main.dial = cfg.Dial
	s.skills.dial = cfg.Files
	s.skills.linger = skillsLinger
	return s
}

// skillsLinger is how long the server for /skills is kept for the next change:
// opening it costs an exec, and its process memory in the sandbox.
const skillsLinger = 2 * time.Second

// Adopt makes an open stream the session's connection, in place of any that it
// had. It closes conn on failure.
func (s *Session) Adopt(ctx context.Context, conn io.ReadWriteCloser) error {
	c, err := newClient(ctx, conn)
	if err != nil {
		return s.fail(ctx, "", err)
	}
	if !s.main.adopt(c) {
		c.fail(errClosed)
		return s.fail(ctx, "", errClosed)
	}
	return nil
}

// Lost returns a channel that is closed when the present connection has broken;
// nil where there is none.
func (s *Session) Lost() <-chan struct{} {
	s.main.mu.Lock()
	defer s.main.mu.Unlock()
	if s.main.client == nil {
		return nil
	}
	return s.main.client.dead
}

// Breaking notes the present connections and returns what waits, under a context,
// until they have broken. A provider calls it before it stops the sandbox, and
// waits afterwards: a connection may break a moment after the sandbox has
// stopped, and later operations must not begin on it.
func (s *Session) Breaking() (wait func(context.Context)) {
	var clients []*client
	for _, l := range []*link{&s.main, &s.skills} {
		l.mu.Lock()
		if l.client != nil {
			clients = append(clients, l.client)
		}
		l.mu.Unlock()
	}
	return func(ctx context.Context) {
		for _, c := range clients {
			select {
			case <-c.dead:
			case <-ctx.Done():
			}
		}
	}
}

// Close ends the session. Operations that go on fail with
// [provider.ErrSessionLost], and so do later ones.
func (s *Session) Close() error {
	s.main.close()
	s.skills.close()
	return nil
}

// Ping returns when the agent has answered.
func (s *Session) Ping(ctx context.Context) error {
	_, err := s.do(ctx, "ping", &s.main, &request{Request: wire.Request{Op: wire.OpPing}}, nil)
	return err
}

// Stats returns what the sandbox uses.
func (s *Session) Stats(ctx context.Context) (provider.Stats, error) {
	resp, err := s.do(ctx, "stats", &s.main, &request{Request: wire.Request{Op: wire.OpStats}}, nil)
	if err != nil {
		return provider.Stats{}, err
	}
	if resp.Stats == nil {
		return provider.Stats{}, s.fail(ctx, "stats", errIncomplete)
	}
	return *resp.Stats, nil
}

var (
	errTooLong    = errors.New("too long: arguments, environment and paths may have about 3 MB together")
	errIncomplete = fmt.Errorf("%w: the answer is incomplete", wire.ErrGarbled)
)

// do performs an operation; op says what it is, for errors.
func (s *Session) do(ctx context.Context, op string, l *link, req *request, onFrame func(*operation, wire.Type, int) error) (*wire.Response, error) {
	resp, err := s.roundTrip(ctx, l, req, onFrame)
	if err == nil && resp.Error != nil {
		err = resp.Error.Decode()
	}
	if err != nil {
		return nil, s.fail(ctx, op, err)
	}
	return resp, nil
}

// roundTrip performs an operation on a live connection.
func (s *Session) roundTrip(ctx context.Context, l *link, req *request, onFrame func(*operation, wire.Type, int) error) (*wire.Response, error) {
	req.quiet, req.reachable = s.cfg.Quiet, s.cfg.Reachable
	for {
		c, release, err := l.get(ctx)
		if err != nil {
			return nil, err
		}
		resp, err := c.call(ctx, req, onFrame)
		release()
		if err == errUnsent {
			continue // it was dead already, which is no reason to fail
		}
		return resp, err
	}
}

// begin begins an operation on a live connection.
func (s *Session) begin(ctx context.Context, req *request) (*operation, error) {
	req.quiet, req.reachable = s.cfg.Quiet, s.cfg.Reachable
	for {
		c, release, err := s.main.get(ctx)
		if err != nil {
			return nil, err
		}
		o, err := c.begin(ctx, req)
		release()
		if err != errUnsent {
			return o, err
		}
	}
}

// fail gives an error its noun: what was being done to which sandbox.
func (s *Session) fail(ctx context.Context, op string, err error) error {
	e := &provider.Error{Op: op, Sandbox: s.cfg.Sandbox, Err: err}
	if inner, ok := errors.AsType[*provider.Error](err); ok && inner.Sandbox != "" {
		return err // from the provider's own Dial, which has said it all
	}
	if errors.Is(err, errTooLong) {
		e.Kind = provider.ErrInvalid
	}
	if lost, ok := errors.AsType[*lostError](err); ok {
		e.Kind, e.Err = provider.ErrSessionLost, lost.explain(ctx, s.cfg.Explain)
		if cause := context.Cause(ctx); cause != nil {
			e.Err = fmt.Errorf("%w: %w", cause, e.Err) // it has not stopped what it was told to
		}
	} else if errors.Is(err, errClosed) || errors.Is(err, wire.ErrGarbled) {
		e.Kind = provider.ErrSessionLost
	}
	return e
}

// recoverable has everything in the sandbox ended if the agent is not able to end
// what req is about. Then the pointer is to the client that it was asked by.
func (s *Session) recoverable(ctx context.Context, req *request) *atomic.Pointer[client] {
	var recovered atomic.Pointer[client]
	if s.cfg.Recover != nil {
		req.unable = func(c *client, why error) {
			recovered.Store(c)
			s.recover(ctx, c, why)
		}
	}
	return &recovered
}

// recover ends everything in the sandbox, once for each connection, and returns
// when that is done.
func (s *Session) recover(ctx context.Context, c *client, why error) error {
	c.recovered.Do(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recoverBound)
		defer cancel()
		text := fmt.Sprintf("%v, so everything in it was ended; other commands in it ended too", why)
		if c.recoverErr = s.cfg.Recover(ctx); c.recoverErr != nil {
			text = fmt.Sprintf("%v, and ending everything in it failed: %v", why, c.recoverErr)
		}
		event.Warn(ctx, fmt.Sprintf("sandbox %s: %s", s.cfg.Sandbox, text))
	})
	return c.recoverErr
}

const recoverBound = 60 * time.Second

// link is a connection that is made when it is needed.
type link struct {
	dial   func(context.Context) (io.ReadWriteCloser, error)
	linger time.Duration // how long it is kept unused. 0: for ever

	mu      sync.Mutex
	closed  bool
	client  *client
	dialing *dialing
	users   int
	timer   *time.Timer
}

// dialing is an attempt that several operations wait for. It ends when none
// does any more.
type dialing struct {
	done    chan struct{}
	client  *client
	err     error
	waiting int
	cancel  context.CancelFunc
}

// get returns a live client, and what to call when it is no longer needed.
func (l *link) get(ctx context.Context) (*client, func(), error) {
	if err := context.Cause(ctx); err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, nil, errClosed
	}
	if l.client != nil && l.client.alive() {
		defer l.mu.Unlock()
		return l.client, l.use(), nil
	}
	if l.dial == nil {
		l.mu.Unlock()
		return nil, nil, provider.ErrUnsupported
	}
	d := l.dialing
	if d == nil {
		d = &dialing{done: make(chan struct{})}
		var dialCtx context.Context
		// The values of the first caller's context, such as where events go, but
		// the patience of all of them.
		dialCtx, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
		l.dialing = d
		go l.connect(dialCtx, d)
	}
	d.waiting++
	l.mu.Unlock()

	select {
	case <-d.done:
		if d.err != nil {
			return nil, nil, d.err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		return d.client, l.use(), nil
	case <-ctx.Done():
		l.mu.Lock()
		if d.waiting--; d.waiting == 0 {
			d.cancel()
			if l.dialing == d {
				l.dialing = nil
			}
		}
		l.mu.Unlock()
		return nil, nil, context.Cause(ctx)
	}
}

func (l *link) connect(ctx context.Context, d *dialing) {
	defer d.cancel()
	conn, err := l.dial(ctx)
	if err == nil {
		d.client, err = newClient(ctx, conn)
	}
	l.mu.Lock()
	if l.dialing == d {
		l.dialing = nil
	}
	switch {
	case err != nil:
	case l.closed:
		err = errClosed
		d.client.fail(err)
	case d.waiting == 0:
		d.client.fail(errClosed) // all callers have gone
	default:
		l.client = d.client
	}
	l.mu.Unlock()
	d.err = err
	close(d.done)
}

// use counts a user; l.mu is held.
func (l *link) use() func() {
	if l.linger == 0 {
		return func() {}
	}
	l.users++
	if l.timer != nil {
		l.timer.Stop()
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.users--; l.users == 0 && !l.closed {
			l.timer = time.AfterFunc(l.linger, l.rest)
		}
	}
}

// rest closes a connection that nobody uses.
func (l *link) rest() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users == 0 && l.client != nil {
		l.client.fail(errClosed)
		l.client = nil
	}
}

func (l *link) adopt(c *client) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if l.client != nil {
		l.client.fail(errClosed)
	}
	l.client = c
	return true
}

// close ends the connection and waits until its goroutines have ended.
func (l *link) close() {
	l.mu.Lock()
	l.closed = true
	c, d := l.client, l.dialing
	if l.timer != nil {
		l.timer.Stop()
	}
	if d != nil {
		d.cancel()
	}
	l.mu.Unlock()
	if c != nil {
		c.fail(errClosed)
		<-c.gone
	}
	if d != nil {
		<-d.done
		if d.client != nil {
			<-d.client.gone
		}
	}
}
