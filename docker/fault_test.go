package docker_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"

	"github.com/capybara-hq/capyrun/internal/testenv"
	"github.com/capybara-hq/capyrun/provider"
)

// The tests whose names begin with TestFault are the fault suite, see "make
// faults". They hold two claims: nothing takes longer than its deadline and a
// second, and nothing is left.

// afterDeadline is how late an operation may return. The claim is one second;
// the rest is for a machine whose processors are taken by the other tests.
const afterDeadline = 3 * time.Second

// small is what most sandboxes of the fault suite need.
func small(name string) provider.Spec {
	return provider.Spec{Name: name, Memory: 64 << 20, PIDs: 64}
}

// engineAt is the plain Docker client of an engine that is not the tests' usual
// one.
func engineAt(t testing.TB, endpoint string) *client.Client {
	t.Helper()
	api, err := client.NewClientWithOpts(client.WithHost(endpoint), client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { api.Close() })
	return api
}

// leftAt lists what has a label and is no part of the agent's store.
func leftAt(t testing.TB, api *client.Client, label string) []string {
	t.Helper()
	f := filters.NewArgs(filters.Arg("label", label))
	containers, err := api.ContainerList(context.Background(), container.ListOptions{All: true, Filters: f})
	if err != nil {
		t.Fatal(err)
	}
	volumes, err := api.VolumeList(context.Background(), volume.ListOptions{Filters: f})
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, c := range containers {
		if c.Labels[provider.LabelRole] != provider.RoleAgent {
			left = append(left, "container "+strings.TrimPrefix(c.Names[0], "/"))
		}
	}
	for _, v := range volumes.Volumes {
		if v.Labels[provider.LabelRole] != provider.RoleAgent {
			left = append(left, "volume "+v.Name)
		}
	}
	slices.Sort(left)
	return left
}

// until waits for a condition.
func until(t testing.TB, what string, bound time.Duration, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(bound); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not come about in %v", what, bound)
		}
	}
}

// within fails the test where f takes longer than the bound.
func within(t testing.TB, what string, bound time.Duration, f func()) {
	t.Helper()
	begin := time.Now()
	f()
	if took := time.Since(begin); took > bound {
		t.Errorf("%s took %v, more than %v", what, took, bound)
	}
}

// isOne reports whether err matches one of the targets.
func isOne(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// endless is an input without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// proxy stands between a provider and the engine, and does to the connections
// what plan says.
type proxy struct {
	endpoint string
	plan     func(number int) fault

	mu    sync.Mutex
	count int
	conns []net.Conn
}

// fault is what happens to one connection.
type fault struct {
	// cut and stall count bytes in one direction: behind them the connection is
	// cut, or nothing more is passed on. Negative: never.
	requestCut, answerCut     int64
	requestStall, answerStall int64
	// each is how long each piece is held up.
	delay time.Duration
}

var none = fault{requestCut: -1, answerCut: -1, requestStall: -1, answerStall: -1}

// newProxy listens until the test ends.
func newProxy(t testing.TB, plan func(number int) fault) *proxy {
	t.Helper()
	network, address, _ := strings.Cut(testenv.Endpoint(), "://")
	dir, err := os.MkdirTemp("", "proxy") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	x := &proxy{endpoint: "unix://" + path, plan: plan}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer in.Close()
				out, err := net.Dial(network, address)
				if err != nil {
					t.Error(err)
					return
				}
				x.forward(in, out)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		x.cutAll()
		wg.Wait()
		os.RemoveAll(dir)
	})
	return x
}

// forward passes bytes both ways until the connection ends.
func (x *proxy) forward(in, out net.Conn) {
	x.mu.Lock()
	f := x.plan(x.count)
	x.count++
	x.conns = append(x.conns, in, out)
	x.mu.Unlock()
	cut := func() { in.Close(); out.Close() }
	defer cut()
	var wg sync.WaitGroup
	wg.Go(func() { pass(out, in, f.requestCut, f.requestStall, f.delay, cut) })
	wg.Go(func() { pass(in, out, f.answerCut, f.answerStall, f.delay, cut) })
	wg.Wait()
}

func pass(to, from net.Conn, cutAt, stallAt int64, delay time.Duration, cut func()) {
	buf := make([]byte, 32<<10)
	for passed := int64(0); ; {
		n, err := from.Read(buf)
		if delay > 0 {
			time.Sleep(delay)
		}
		if stallAt >= 0 {
			n = int(min(int64(n), stallAt-passed))
		}
		if cutAt >= 0 && passed+int64(n) >= cutAt {
			to.Write(buf[:cutAt-passed])
			cut()
			return
		}
		if _, werr := to.Write(buf[:n]); werr != nil {
			cut()
			return
		}
		passed += int64(n)
		if err != nil {
			if half, ok := to.(interface{ CloseWrite() error }); ok && err == io.EOF {
				half.CloseWrite()
			} else {
				cut()
			}
			return
		}
	}
}

// cutAll cuts every connection there is.
func (x *proxy) cutAll() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range x.conns {
		c.Close()
	}
	x.conns = nil
}

// connections is how many there have been.
func (x *proxy) connections() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.count
}
