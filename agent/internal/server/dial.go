//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/provider"
)

// dial connects to a server in the sandbox and relays both ways until both are
// done. It takes the stream over: a second final frame never comes.
func (c *call) dial(ctx context.Context) *wire.Response {
	network, address := c.req.Network, string(c.req.Address)
	switch network {
	case "tcp":
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return failure(&provider.InvalidError{Field: "address", Value: address, Reason: "must be host:port"})
		}
		if host == "" {
			address = net.JoinHostPort("localhost", port)
		}
	case "unix":
		clean, err := provider.CleanPath("address", address)
		if err != nil {
			return failure(err)
		}
		address = c.session.server.files.host(clean)
	default:
		return failure(&provider.InvalidError{Field: "network", Value: network, Reason: `must be "tcp" or "unix"`})
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if cause := context.Cause(ctx); cause != nil {
		if err == nil {
			conn.Close()
		}
		return failure(cause)
	}
	if err != nil {
		if e, ok := errors.AsType[*net.OpError](err); ok {
			err = e.Err
		}
		return failure(fmt.Errorf("%w", bare(err)))
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	c.out.JSON(wire.TypeFinal, &wire.Response{})
	if c.out.Flush() != nil {
		return nil
	}
	var relays sync.WaitGroup
	relays.Go(func() {
		c.ended = false
		_, err := io.Copy(conn, c.input(ctx))
		if err != nil {
			conn.Close() // the client has gone, or the server reads no more
			return
		}
		conn.(interface{ CloseWrite() error }).CloseWrite()
	})
	relays.Go(func() {
		buf := copyBuffers.Get().(*[wire.MaxData]byte)
		defer copyBuffers.Put(buf)
		for {
			n, err := conn.Read(buf[:])
			if n > 0 {
				c.out.Frame(wire.TypeData, buf[:n])
				if c.out.Flush() != nil {
					conn.Close()
					return
				}
			}
			if err == io.EOF {
				c.out.Frame(wire.TypeEnd, nil)
				c.out.Flush()
				return
			}
			if err != nil {
				// No end frame: the client sees that the connection broke.
				c.stream.Close()
				return
			}
		}
	})
	relays.Wait()
	return nil
}
