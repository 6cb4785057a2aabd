//go:build linux

package agent_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/provider"
)

// echo answers with what it reads, until the end of its input.
func echo(t *testing.T, l net.Listener) {
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
				c.Write([]byte("bye"))
			}()
		}
	}()
}

func TestDial(t *testing.T) {
	b, s := newSession(t)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	echo(t, tcp)
	unix, err := net.Listen("unix", filepath.Join(b.workspace, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	echo(t, unix)
	_, port, _ := net.SplitHostPort(tcp.Addr().String())
	for _, tt := range []struct{ network, address string }{
		{"tcp", tcp.Addr().String()}, {"tcp", "127.0.0.1:" + port}, {"tcp", ":" + port}, {"unix", "sock"}, {"unix", "/workspace/sock"},
	} {
		t.Run(tt.network+tt.address, func(t *testing.T) {
			c, err := s.Dial(ctx, tt.network, tt.address)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			data := bytes.Repeat([]byte("0123456789"), 300000)
			go func() {
				c.Write(data)
				c.(interface{ CloseWrite() error }).CloseWrite()
			}()
			got, err := io.ReadAll(c)
			if err != nil || string(got) != string(data)+"bye" {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
		})
	}
}

func TestDialFails(t *testing.T) {
	_, s := newSession(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	if _, err := s.Dial(ctx, "tcp", address); !errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, provider.ErrSessionLost) {
		t.Errorf("nobody listens: %v", err)
	}
	if _, err := s.Dial(ctx, "unix", "none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such socket: %v", err)
	}
	for _, bad := range [][2]string{{"udp", "x:1"}, {"tcp", "x"}, {"unix", ""}} {
		if _, err := s.Dial(ctx, bad[0], bad[1]); !errors.Is(err, provider.ErrInvalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestDialDeadlinesAndClose(t *testing.T) {
	_, s := newSession(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	echo(t, l)
	c, err := s.Dial(ctx, "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	c.SetReadDeadline(time.Time{})
	c.Write([]byte("x"))
	b := make([]byte, 10)
	if n, err := c.Read(b); err != nil || string(b[:n]) != "x" {
		t.Errorf("the connection does not survive a deadline: %q, %v", b[:n], err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := c.Read(b)
		done <- err
	}()
	time.Sleep(10 * time.Millisecond)
	c.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a read that was waiting: %v", err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a write after Close: %v", err)
	}
}

func TestDialServerCloses(t *testing.T) {
	_, s := newSession(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		c.Read(make([]byte, 1))
		c.(*net.TCPConn).SetLinger(0)
		c.Close() // resets
	}()
	c, err := s.Dial(ctx, "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write([]byte("x"))
	if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF || errors.Is(err, provider.ErrSessionLost) {
		t.Errorf("a connection that was reset: %v", err)
	}
	if err := s.Ping(ctx); err != nil {
		t.Errorf("the session: %v", err)
	}
}
