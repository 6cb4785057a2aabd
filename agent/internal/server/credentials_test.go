//go:build linux

package server

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// connected returns both ends of a connection of this process with itself,
// which looks as every connection does under gVisor.
func connected(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	addr := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"}
	l, err := net.ListenUnix("unix", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.DialUnix("unix", nil, addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	if b, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return a, b
}

func TestCredentialsAreExchanged(t *testing.T) {
	a, b := connected(t)
	type answer struct {
		cred *unix.Ucred
		err  error
	}
	other := make(chan answer)
	go func() {
		cred, err := peer(a)
		// The session's first bytes may come along.
		io.WriteString(a, "session")
		other <- answer{cred, err}
	}()
	cred, err := peer(b)
	want := unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}
	if err != nil || *cred != want {
		t.Errorf("got %+v, %v", cred, err)
	}
	if o := <-other; o.err != nil || *o.cred != want {
		t.Errorf("the other end got %+v, %v", o.cred, o.err)
	}
	got := make([]byte, 7)
	if _, err := io.ReadFull(b, got); err != nil || string(got) != "session" {
		t.Errorf("after it came %q, %v", got, err)
	}
}

func TestCredentialsAreWanted(t *testing.T) {
	t.Run("the other end goes", func(t *testing.T) {
		a, b := connected(t)
		a.Close()
		if cred, err := peer(b); err == nil || !strings.Contains(err.Error(), "credentials") {
			t.Errorf("got %+v, %v", cred, err)
		}
	})
	t.Run("another user", func(t *testing.T) {
		addr := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"}
		l, err := net.ListenUnix("unix", addr)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			new(Server).accept(l, uint32(os.Getuid())+1)
		}()
		defer func() { l.Close(); <-done }()
		conn, err := net.DialUnix("unix", nil, addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := peer(conn); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a session was opened: %d bytes, %v", n, err)
		}
	})
}

func TestThreadOf(t *testing.T) {
	self, thread := int32(os.Getpid()), make(chan int32)
	// A thread of its own, and not the first.
	go func() {
		runtime.LockOSThread()
		thread <- int32(unix.Gettid())
		<-thread
	}()
	other := <-thread
	defer close(thread)
	for number, want := range map[int32]bool{self: true, other: true, int32(os.Getppid()): false} {
		if got := threadOf(self, number); got != want {
			t.Errorf("threadOf(%d, %d) is %v", self, number, got)
		}
	}
}
