package ports

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Forward gives a port in a sandbox an address on this host. Close it.
type Forward struct {
	listener net.Listener
	sb       Sandbox
	port     int
	failed   func(error)
	ctx      context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup // the accept loop and the connections
}

// Listen forwards every connection that is made to address, such as
// "127.0.0.1:0", to the port in the sandbox. Each direction ends for itself, and
// a connection that breaks on one side is reset on the other, so that nobody
// takes a part for the whole.
//
// failed, unless it is nil, gets the error of every connection for which the
// sandbox could not be reached; it is called from many goroutines at once.
func Listen(sb Sandbox, port int, address string, failed func(error)) (*Forward, error) {
	if err := Check(port); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	if failed == nil {
		failed = func(error) {}
	}
	f := &Forward{listener: listener, sb: sb, port: port, failed: failed}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.running.Go(f.accept)
	return f, nil
}

// Addr is the address on this host.
func (f *Forward) Addr() net.Addr { return f.listener.Addr() }

// Close stops listening, breaks the connections and waits until all of it has
// ended. It may be called twice.
func (f *Forward) Close() error {
	f.cancel()
	err := f.listener.Close()
	f.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (f *Forward) accept() {
	for {
		conn, err := f.listener.Accept()
		switch {
		case err == nil:
			f.running.Go(func() { f.relay(conn) })
		case f.ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return
		default:
			// The process has no descriptors left, for one; some will come back.
			f.failed(err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-f.ctx.Done():
				return
			}
		}
	}
}

// relay serves one connection.
func (f *Forward) relay(client net.Conn) {
	server, err := Dial(f.ctx, f.sb, f.port)
	if err != nil {
		reset(client)
		if f.ctx.Err() == nil {
			f.failed(err)
		}
		return
	}
	// Both are closed at the end of the relay or of the forward, whichever comes
	// first, and before relay returns.
	breakOff := sync.OnceFunc(func() {
		reset(client)
		server.Close()
	})
	stop := context.AfterFunc(f.ctx, breakOff)
	var other sync.WaitGroup
	one := func(to, from net.Conn) {
		if _, err := io.Copy(to, from); err != nil {
			breakOff()
			return
		}
		to.(interface{ CloseWrite() error }).CloseWrite()
	}
	other.Go(func() { one(server, client) })
	one(client, server)
	other.Wait()
	if stop() {
		client.Close()
		server.Close()
	} else {
		breakOff() // waits for the one that runs
	}
}

// reset closes a connection so that the other end does not take it for a
// regular end.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}
