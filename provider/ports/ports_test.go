package ports_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/provider/ports"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// local is a sandbox whose ports are this host's.
type local struct{ dialed chan struct{} }

func (local) Name() string { return "box" }

func (l local) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if l.dialed != nil {
		l.dialed <- struct{}{}
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, "127.0.0.1"+address)
	if err != nil {
		return nil, &provider.Error{Op: "dial", Sandbox: "box", Err: err}
	}
	return conn, nil
}

// serve answers every connection with handle and returns the port.
func serve(t *testing.T, handle func(*net.TCPConn)) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				handle(conn.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() { l.Close(); running.Wait() })
	return l.Addr().(*net.TCPAddr).Port
}

// unused is a port on which nobody listens.
func unused(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func forward(t *testing.T, sb ports.Sandbox, port int, failed func(error)) *ports.Forward {
	t.Helper()
	f, err := ports.Listen(sb, port, "127.0.0.1:0", failed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func connect(t *testing.T, f *ports.Forward) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", f.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}

// TestForwardHalfClose: the end of one direction leaves the other open.
func TestForwardHalfClose(t *testing.T) {
	t.Run("by the client", func(t *testing.T) {
		f := forward(t, local{}, serve(t, func(c *net.TCPConn) {
			data, err := io.ReadAll(c)
			fmt.Fprintf(c, "got %s, %v", data, err)
		}), nil)
		c := connect(t, f)
		io.WriteString(c, "question")
		c.CloseWrite()
		if got, err := io.ReadAll(c); string(got) != "got question, <nil>" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("by the server", func(t *testing.T) {
		got := make(chan string, 1)
		f := forward(t, local{}, serve(t, func(c *net.TCPConn) {
			io.WriteString(c, "greeting")
			c.CloseWrite()
			data, err := io.ReadAll(c)
			got <- fmt.Sprintf("%s, %v", data, err)
		}), nil)
		c := connect(t, f)
		if data, err := io.ReadAll(c); string(data) != "greeting" || err != nil {
			t.Errorf("%q, %v", data, err)
		}
		io.WriteString(c, "answer")
		c.Close()
		if s := <-got; s != "answer, <nil>" {
			t.Error(s)
		}
	})
}

// TestForwardBreaks: a connection that breaks is no regular end on the other side.
func TestForwardBreaks(t *testing.T) {
	t.Run("the server", func(t *testing.T) {
		f := forward(t, local{}, serve(t, func(c *net.TCPConn) {
			io.ReadFull(c, make([]byte, 1))
			io.WriteString(c, "part")
			c.SetLinger(0)
		}), nil)
		c := connect(t, f)
		io.WriteString(c, "x")
		if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the client saw %v", err)
		}
	})
	t.Run("the client", func(t *testing.T) {
		ended := make(chan struct{})
		f := forward(t, local{}, serve(t, func(c *net.TCPConn) {
			io.Copy(io.Discard, c)
			close(ended)
		}), nil)
		c := connect(t, f)
		io.WriteString(c, "x")
		c.SetLinger(0)
		c.Close()
		<-ended
	})
	t.Run("nobody listens", func(t *testing.T) {
		failures := make(chan error, 1)
		port := unused(t)
		f := forward(t, local{}, port, func(err error) { failures <- err })
		// The reset may come before the client has noticed that it is connected.
		seen := func() error {
			c, err := net.Dial("tcp", f.Addr().String())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = io.ReadAll(c)
			return err
		}
		if err := seen(); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the client saw %v", err)
		}
		if err := <-failures; err.Error() != fmt.Sprintf("sandbox box: no server listens on port %d", port) || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Error(err)
		}
		// The forward goes on.
		if err := seen(); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the next client saw %v", err)
		}
		<-failures
	})
}

// TestForwardClose: closing breaks what is open, also a dial.
func TestForwardClose(t *testing.T) {
	f := forward(t, local{}, serve(t, func(c *net.TCPConn) { io.Copy(io.Discard, c) }), func(err error) { t.Error(err) })
	open := connect(t, f)
	io.WriteString(open, "x")

	sb := local{dialed: make(chan struct{})}
	stuck, err := ports.Listen(blocked{sb}, 1, "127.0.0.1:0", func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	dialing := connect(t, stuck)
	<-sb.dialed

	for _, f := range []*ports.Forward{f, stuck, stuck} {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []net.Conn{open, dialing} {
		if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("the client saw %v", err)
		}
	}
	if _, err := net.Dial("tcp", f.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("it still listens: %v", err)
	}
}

// blocked is a sandbox that does not answer.
type blocked struct{ local }

func (b blocked) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	b.dialed <- struct{}{}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// TestForwardMany relays many connections at once, byte for byte.
func TestForwardMany(t *testing.T) {
	f := forward(t, local{}, serve(t, func(c *net.TCPConn) { io.Copy(c, c) }), func(err error) { t.Error(err) })
	data := make([]byte, 256<<10)
	rand.Read(data)
	var wg sync.WaitGroup
	for i := range 100 {
		part := data[:len(data)/100*(i+1)]
		c := connect(t, f)
		wg.Go(func() {
			go func() {
				c.Write(part)
				c.CloseWrite()
			}()
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, part) {
				t.Errorf("connection %d: %d of %d bytes, %v", i, len(got), len(part), err)
			}
		})
	}
	wg.Wait()
}

func TestForwardLarge(t *testing.T) {
	const size = 64 << 20
	f := forward(t, local{}, serve(t, func(c *net.TCPConn) {
		n, _ := io.Copy(io.Discard, c)
		io.CopyN(c, endless{}, n)
	}), func(err error) { t.Error(err) })
	c := connect(t, f)
	io.CopyN(c, endless{}, size)
	c.CloseWrite()
	if n, err := io.Copy(io.Discard, c); n != size || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestWait(t *testing.T) {
	port := unused(t)
	sb := local{dialed: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- ports.Wait(t.Context(), sb, port) }()
	for range 3 { // it goes on trying
		<-sb.dialed
	}
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for {
		select {
		case <-sb.dialed:
			continue
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		}
	}
}

func TestWaitFails(t *testing.T) {
	port := unused(t)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("the time is over"))
	defer cancel()
	err := ports.Wait(ctx, local{}, port)
	if want := fmt.Sprintf("sandbox box: no server listens on port %d: the time is over", port); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := ports.Wait(t.Context(), goneBox{}, port); !errors.Is(err, provider.ErrGone) {
		t.Errorf("a sandbox that is gone: %v", err)
	}
	for _, port := range []int{0, -1, 65536} {
		if err := ports.Wait(t.Context(), local{}, port); !errors.Is(err, provider.ErrInvalid) {
			t.Errorf("port %d: %v", port, err)
		}
	}
}

type goneBox struct{ local }

func (goneBox) Dial(context.Context, string, string) (net.Conn, error) {
	return nil, &provider.Error{Op: "dial", Sandbox: "box", Kind: provider.ErrGone}
}

func TestDo(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		w.Header().Add("Set-Cookie", "a=1")
		w.Header().Add("Set-Cookie", "b=2")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s %s %s %s %d %s", r.Method, r.URL, r.Host, r.UserAgent(), r.ContentLength, data)
	})
	mux.Handle("/away", http.RedirectHandler("http://203.0.113.1/", http.StatusFound))
	mux.HandleFunc("/cut", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "part")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/header", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X", strings.Repeat("x", 2<<20))
	})
	released := make(chan struct{})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "begun")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(released)
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	port := srv.Listener.Addr().(*net.TCPAddr).Port

	do := func(ctx context.Context, method, path string, in io.Reader) (*http.Response, string, error) {
		req, err := ports.NewRequest(ctx, method, port, path, in)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := ports.Do(local{}, req)
		if err != nil {
			return nil, "", err
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		return resp, string(data), err
	}

	resp, got, err := do(t.Context(), "post", "/echo?a=b c", strings.NewReader("data"))
	if want := fmt.Sprintf("POST /echo?a=b%%20c localhost:%d capyrun 4 data", port); err != nil || got != want || resp.StatusCode != http.StatusTeapot {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if c := resp.Header.Values("Set-Cookie"); len(c) != 2 {
		t.Errorf("cookies %q", c)
	}
	if resp, _, err := do(t.Context(), "GET", "/away", nil); err != nil || resp.StatusCode != http.StatusFound {
		t.Errorf("a redirect: %v", err)
	}
	if _, got, err := do(t.Context(), "GET", "/cut", nil); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a cut body: %q, %v", got, err)
	}
	if _, _, err := do(t.Context(), "GET", "/header", nil); err == nil {
		t.Error("a header of any size is taken")
	}
	why := errors.New("no longer wanted")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, why)
	defer cancel()
	if _, got, err := do(ctx, "GET", "/slow", nil); got != "begun" || !errors.Is(err, why) {
		t.Errorf("cancelled: %q, %v", got, err)
	}
	<-released

	for name, test := range map[string]struct{ method, path string }{
		"method": {"A B", "/"}, "path": {"GET", "x"}, "escape": {"GET", "/%zz"}, "newline": {"GET", "/\n"},
	} {
		if _, err := ports.NewRequest(t.Context(), test.method, port, test.path, nil); !errors.Is(err, provider.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A server that switches protocols and then says nothing holds nobody.
func TestHTTPSwitchingProtocols(t *testing.T) {
	port := serve(t, func(c *net.TCPConn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nhi")
		io.Copy(io.Discard, c) // until the client leaves
	})
	req, err := ports.NewRequest(t.Context(), "GET", port, "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := ports.Do(local{}, req); err == nil || !strings.Contains(err.Error(), "another protocol") {
		t.Errorf("got %v, %v", resp, err)
	}
}
