package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
)

// Dial opens a connection to a server in the sandbox, see [provider.Sandbox].
// After a Write that has failed, a deadline included, no other succeeds.
func (s *Session) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	op := "dial " + network + " " + address
	o, err := s.begin(ctx, &request{Request: wire.Request{Op: wire.OpDial, Network: network, Address: []byte(address)}})
	if err != nil {
		return nil, s.fail(ctx, op, err)
	}
	for {
		t, _, err := o.next()
		if err == nil && t != wire.TypeFinal {
			continue
		}
		var resp *wire.Response
		if err == nil {
			resp, err = o.final()
		}
		if err == nil && resp.Error != nil {
			if err = resp.Error.Decode(); context.Cause(ctx) != nil {
				err = context.Cause(ctx)
			}
			o.end(true)
			return nil, s.fail(ctx, op, err)
		}
		// From here on ctx has no say.
		if err == nil && !o.stop() {
			err = context.Cause(ctx)
		}
		if err != nil {
			o.end(false)
			return nil, s.fail(ctx, op, err)
		}
		o.watch.Stop()
		o.done.Store(true)
		return &conn{s: s, op: op, o: o, addr: addr{network, address}}, nil
	}
}

// conn is a connection that the agent relays.
type conn struct {
	s    *Session
	op   string
	o    *operation
	addr addr

	readMu sync.Mutex
	left   int  // of the present frame
	eof    bool // the other side has ended its direction

	writeMu  sync.Mutex
	writeErr error

	closeOnce sync.Once
	closed    atomic.Bool
}

func (c *conn) Read(p []byte) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	for c.left == 0 {
		if c.eof {
			return 0, io.EOF
		}
		t, n, err := c.o.s.in.Next()
		if err != nil {
			return 0, c.failed(err)
		}
		switch t {
		case wire.TypeData:
			c.left = n
		case wire.TypeEnd:
			c.eof = true
		}
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.o.s.in.Read(p[:min(len(p), c.left)])
	c.left -= n
	if c.closed.Load() {
		return 0, net.ErrClosed
	}
	if err != nil && n == 0 {
		return 0, c.failed(err)
	}
	return n, nil
}

// failed explains an error of the stream.
func (c *conn) failed(err error) error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return os.ErrDeadlineExceeded
	}
	if c.o.c.ended() || errors.Is(err, wire.ErrGarbled) {
		return c.s.fail(context.Background(), c.op, c.o.lost(err))
	}
	return fmt.Errorf("%s: the connection broke: %w", c.op, err)
}

func (c *conn) Write(p []byte) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	written := 0
	for len(p) > 0 && c.writeErr == nil {
		n := min(len(p), wire.MaxData)
		c.o.s.out.Frame(wire.TypeData, p[:n])
		if err := c.o.s.out.Flush(); err != nil {
			c.writeErr = c.failed(err) // a part of the frame may have been sent
			break
		}
		written += n
		p = p[n:]
	}
	return written, c.writeErr
}

// CloseWrite ends this direction: the server reads the end of its input.
func (c *conn) CloseWrite() error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if c.writeErr != nil {
		return c.writeErr
	}
	c.o.s.out.Frame(wire.TypeEnd, nil)
	c.writeErr = net.ErrClosed
	return c.o.s.out.Flush()
}

// lingerBound is how long what was written may take to reach a server after
// Close.
const lingerBound = 5 * time.Second

func (c *conn) Close() error {
	c.closeOnce.Do(func() {
		c.closed.Store(true)
		c.o.s.SetReadDeadline(time.Unix(1, 0)) // ends a Read that waits
		c.o.s.SetWriteDeadline(time.Now().Add(lingerBound))
		c.CloseWrite()
		c.o.c.release(c.o.s, false)
		time.AfterFunc(lingerBound, func() { c.o.c.cancelCall(c.o.number) })
	})
	return nil
}

func (c *conn) LocalAddr() net.Addr                { return addr{c.addr.network, "capyrun"} }
func (c *conn) RemoteAddr() net.Addr               { return c.addr }
func (c *conn) SetDeadline(t time.Time) error      { return c.o.s.SetDeadline(t) }
func (c *conn) SetReadDeadline(t time.Time) error  { return c.o.s.SetReadDeadline(t) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.o.s.SetWriteDeadline(t) }

type addr struct{ network, address string }

func (a addr) Network() string { return a.network }
func (a addr) String() string  { return a.address }
