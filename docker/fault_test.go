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
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // the engine may be hanging
	defer cancel()
	api.NegotiateAPIVersion(ctx) // the first calls would race to do so
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

// proxy stands between a provider and the engine. It passes everything on until
// it is told otherwise.
type proxy struct {
	endpoint string
	stop     chan struct{} // closed when the test ends

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	passed [2]int64 // bytes since arm: of requests, of answers
	at     [2]int64 // how many of them pass before the fault. Negative: all
	stall  bool     // the fault: nothing passes any more. Else every connection is cut, once
	hangs  bool
}

const (
	requests = 0
	answers  = 1
)

// newProxy listens until the test ends.
func newProxy(t testing.TB) *proxy {
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
	x := &proxy{endpoint: "unix://" + path, stop: make(chan struct{}), conns: map[net.Conn]struct{}{}, at: [2]int64{-1, -1}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				out, err := net.Dial(network, address)
				if err != nil {
					t.Error(err)
					in.Close()
					return
				}
				x.mu.Lock()
				x.conns[in], x.conns[out] = struct{}{}, struct{}{}
				x.mu.Unlock()
				var both sync.WaitGroup
				both.Go(func() { x.pass(requests, out, in) })
				both.Go(func() { x.pass(answers, in, out) })
				both.Wait()
				x.mu.Lock()
				delete(x.conns, in)
				delete(x.conns, out)
				x.mu.Unlock()
				in.Close()
				out.Close()
			})
		}
	})
	t.Cleanup(func() {
		close(x.stop)
		l.Close()
		x.cut()
		wg.Wait()
		os.RemoveAll(dir)
	})
	return x
}

// arm counts anew from now, and has the fault behind so many bytes in one
// direction, those of all connections together.
func (x *proxy) arm(direction int, at int64, stall bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.passed, x.at, x.stall, x.hangs = [2]int64{}, [2]int64{-1, -1}, stall, false
	x.at[direction] = at
}

// pass passes one direction of a connection on.
func (x *proxy) pass(direction int, to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		n, fault, hangs := x.count(direction, n)
		if hangs {
			<-x.stop
			return
		}
		to.Write(buf[:n])
		if fault {
			x.cut()
			return
		}
		if err != nil {
			// An end of this direction is passed on as one.
			if half, ok := to.(interface{ CloseWrite() error }); ok && err == io.EOF {
				half.CloseWrite()
			} else {
				from.Close()
				to.Close()
			}
			return
		}
	}
}

// count says how many of n bytes pass, and what then.
func (x *proxy) count(direction, n int) (pass int, cut, hangs bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.passed[direction] += int64(n)
	at := x.at[direction]
	if at < 0 || x.passed[direction] < at {
		return n, false, x.hangs
	}
	if x.stall {
		x.hangs = true
		return 0, false, true
	}
	x.at[direction] = -1
	return n - int(x.passed[direction]-at), true, false
}

// cut cuts every connection that there is.
func (x *proxy) cut() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for c := range x.conns {
		c.Close()
	}
}

// bytes is how many have passed since arm.
func (x *proxy) bytes() (request, answer int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.passed[requests], x.passed[answers]
}
