//go:build linux

package server

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/provider"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRingKeepsNewest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 40).Draw(t, "limit")
		r := newRing(limit)
		type piece struct {
			s provider.Stream
			b byte
		}
		var all []piece
		for range rapid.IntRange(0, 30).Draw(t, "pieces") {
			s := provider.Stream(rapid.IntRange(1, 2).Draw(t, "stream"))
			data := []byte(rapid.StringMatching(`[a-z]{0,50}`).Draw(t, "data"))
			r.add(s, data)
			for _, b := range data {
				all = append(all, piece{s, b})
			}
		}
		newest := all[max(0, len(all)-int(limit)):]
		for _, s := range []provider.Stream{provider.Stdout, provider.Stderr} {
			var want, whole []byte
			for _, p := range newest {
				if p.s == s {
					want = append(want, p.b)
				}
			}
			for _, p := range all {
				if p.s == s {
					whole = append(whole, p.b)
				}
			}
			got, cut := r.content(s)
			if !bytes.Equal(got, want) || cut != (len(want) < len(whole)) {
				t.Fatalf("%v: %q, cut %v, want %q of %q", s, got, cut, want, whole)
			}
		}
		r.drop()
		r.add(provider.Stdout, []byte("late"))
		if got, cut := r.content(provider.Stdout); len(got) > 0 || !cut {
			t.Fatalf("after drop: %q, cut %v", got, cut)
		}
	})
}

// TestFollower: a follower gets everything in order, but for what was dropped
// before it came to it, which it knows of.
func TestFollower(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRing(rapid.Int64Range(1, 40).Draw(t, "limit"))
		f := &follower{ring: r}
		type piece struct {
			stream int
			b      byte
		}
		var all, got []piece // every byte is another
		read := func() bool {
			s, data, more := f.next(make([]byte, rapid.IntRange(1, 20).Draw(t, "buffer")), 1<<40)
			if (data == nil) != (more != nil) {
				t.Fatalf("%q and %v", data, more)
			}
			for _, b := range data {
				got = append(got, piece{wire.Index(s), b})
			}
			return data != nil
		}
		for range rapid.IntRange(0, 12).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "read") {
				read()
				continue
			}
			s := provider.Stream(rapid.IntRange(1, 2).Draw(t, "stream"))
			for range rapid.IntRange(0, 10).Draw(t, "size") {
				p := piece{wire.Index(s), byte(len(all))}
				all = append(all, p)
				r.add(s, []byte{p.b})
			}
		}
		for read() {
		}
		var missed [2]bool
		rest := all
		for _, p := range got {
			for len(rest) > 0 && rest[0] != p {
				missed[rest[0].stream], rest = true, rest[1:]
			}
			if len(rest) == 0 {
				t.Fatalf("%v is not in the order of %v", got, all)
			}
			rest = rest[1:]
		}
		if len(rest) > 0 || missed != f.cut {
			t.Fatalf("got %v of %v, cut %v", got, all, f.cut)
		}
		r.drop()
		if f := (&follower{ring: r}); len(all) > 0 {
			if _, data, _ := f.next(make([]byte, 1), 1<<40); data != nil || !f.cut[0] && !f.cut[1] {
				t.Fatalf("after drop: %q, cut %v", data, f.cut)
			}
		}
	})
}

func TestKeptOutputIsBounded(t *testing.T) {
	k := &keptOutput{limit: 100}
	var rings []*ring
	for range 20 {
		r := newRing(1000)
		r.add(provider.Stdout, make([]byte, 30))
		rings = append(rings, r)
		k.ended(r)
	}
	total := int64(0)
	for _, r := range rings {
		total += r.size()
	}
	if total > 100 || rings[19].size() != 30 || rings[0].size() != 0 {
		t.Errorf("%d bytes are kept", total)
	}
}

func TestOOMVictims(t *testing.T) {
	for _, tt := range []struct {
		name      string
		victims   []oomSpan
		span      oomSpan
		explained bool
	}{
		{"nobody else", nil, oomSpan{0, 1}, false},
		{"another one", []oomSpan{{0, 1}}, oomSpan{0, 1}, true},
		{"another one, which ran longer", []oomSpan{{0, 3}}, oomSpan{1, 2}, true},
		{"one that ran before", []oomSpan{{0, 1}}, oomSpan{1, 2}, false},
		{"one more than the other's", []oomSpan{{0, 1}}, oomSpan{0, 2}, false},
		{"two others", []oomSpan{{0, 1}, {1, 2}}, oomSpan{0, 2}, true},
	} {
		v := &oomVictims{}
		for range maxVictims {
			v.add(oomSpan{100, 101})
		}
		for _, s := range tt.victims {
			v.add(s)
		}
		if got := v.explain(tt.span); got != tt.explained {
			t.Errorf("%s: %v", tt.name, got)
		}
		if len(v.spans) > maxVictims {
			t.Errorf("%d are remembered", len(v.spans))
		}
	}
}

func TestParseSignal(t *testing.T) {
	for s, want := range map[string]int{"TERM": 15, "SIGTERM": 15, "sigkill": 9, "9": 9, "64": 64, "RTMAX": 0, "": 0, "0": 0, "65": 0, "SIG": 0, "-9": 0} {
		got, err := parseSignal(s)
		if int(got) != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
}

func TestOwnProcesses(t *testing.T) {
	self, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	p, ok := parseStat(self)
	if !ok || p.parent != os.Getppid() || p.start == 0 || p.start > bootTicks() || bootTicks()-p.start > 60*userHZ*60 {
		t.Errorf("%+v, %v; now %d", p, ok, bootTicks())
	}
	list, err := processes()
	if err != nil || len(list) == 0 {
		t.Errorf("%v, %v", list, err)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (a) b) c) S 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 5 1 1 1"))
	f.Add([]byte("1 (x"))
	f.Fuzz(func(t *testing.T, data []byte) { parseStat(data) })
}

// startServer serves one client in this process. Commands cannot be started,
// whatever the client asks for.
func startServer(t testing.TB) (conn net.Conn, dir string, wait func()) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := NewFiles([]Place{{provider.Workspace, dir}})
	a, b := net.Pipe()
	done := make(chan struct{})
	go func() {
		s.Serve(b)
		close(done)
	}()
	return a, dir, func() {
		a.Close()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Error("the server does not end with its client")
		}
	}
}

func TestUnknownOperation(t *testing.T) {
	for _, op := range []wire.Op{"future", wire.OpExec, wire.OpRead} {
		conn, _, wait := startServer(t)
		resp := roundTrip(t, conn, wire.Request{Op: op})
		if resp.Error == nil || resp.Error.Kind != string(provider.ErrUnsupported) {
			t.Errorf("%s: %+v", op, resp.Error)
		}
		wait()
	}
}

// greet exchanges greetings over a pipe, where each side's writing waits for
// the other's reading.
func greet(t testing.TB, conn net.Conn) {
	t.Helper()
	written := make(chan error, 1)
	go func() { written <- wire.WriteHello(conn, wire.Hello{Version: 1}) }()
	if _, err := wire.ReadHello(conn); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}

func roundTrip(t testing.TB, conn net.Conn, req wire.Request) *wire.Response {
	t.Helper()
	greet(t, conn)
	m, err := wire.NewMux(conn, true)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	st, err := m.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	w := wire.NewWriter(st)
	w.Frame(77, []byte("a frame of the future"))
	w.JSON(wire.TypeRequest, &req)
	w.Flush()
	r := wire.NewReader(st)
	if typ, _, err := r.Next(); err != nil || typ != wire.TypeFinal {
		t.Fatalf("type %d, %v", typ, err)
	}
	var resp wire.Response
	if err := r.JSON(&resp); err != nil {
		t.Fatal(err)
	}
	return &resp
}

// FuzzConnection gives a server garbage in the place of the greeting and of the
// multiplexer.
func FuzzConnection(f *testing.F) {
	f.Add([]byte("garbage"), false)
	f.Add([]byte{0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0}, true)
	f.Fuzz(func(t *testing.T, data []byte, greet bool) {
		conn, _, wait := startServer(t)
		defer wait()
		go io.Copy(io.Discard, conn)
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		if greet {
			wire.WriteHello(conn, wire.Hello{Version: 1})
		}
		conn.Write(data)
	})
}

// FuzzRequests gives a server frames, and checks that nothing outside of its
// place changes.
func FuzzRequests(f *testing.F) {
	for _, req := range []wire.Request{
		{Op: wire.OpWrite, Path: []byte("/workspace/a/../b"), Input: true},
		{Op: wire.OpMkdir, Path: []byte("x/y")},
		{Op: wire.OpRename, Path: []byte("x"), To: []byte("../y")},
		{Op: wire.OpRemove, Path: []byte("x/..")},
		{Op: wire.OpUpload, Path: []byte("x"), Input: true},
		{Op: wire.OpExec, Command: &wire.Command{Shell: []byte("true")}},
	} {
		b, err := json.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, []byte{2, 0, 0, 0, 1, 'x', 3, 0, 0, 0, 0})
	}
	f.Fuzz(func(t *testing.T, request, rest []byte) {
		if len(request) > wire.MaxRequest {
			return
		}
		conn, dir, wait := startServer(t)
		defer wait()
		beside := filepath.Join(filepath.Dir(dir), "beside")
		if err := os.WriteFile(beside, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		os.Symlink("..", filepath.Join(dir, "up"))
		os.Symlink(beside, filepath.Join(dir, "link"))
		greet(t, conn)
		m, err := wire.NewMux(conn, true)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		st, err := m.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		w := wire.NewWriter(st)
		w.Frame(wire.TypeRequest, request)
		w.Flush()
		st.Write(rest)
		st.Close()
		st.SetReadDeadline(time.Now().Add(5 * time.Second))
		io.Copy(io.Discard, st)
		if b, err := os.ReadFile(beside); err != nil || string(b) != "x" {
			t.Fatalf("written outside: %q, %v", b, err)
		}
		if list, _ := os.ReadDir(filepath.Dir(dir)); len(list) != 2 {
			t.Fatalf("made outside: %v", list)
		}
		for _, e := range must(os.ReadDir(dir)) {
			if strings.HasPrefix(e.Name(), ".capyrun-") {
				waitGone(t, filepath.Join(dir, e.Name()))
			}
		}
	})
}

func must[T any](v T, _ error) T { return v }

func waitGone(t testing.TB, name string) {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if _, err := os.Lstat(name); err != nil {
			return
		}
	}
	t.Errorf("left behind: %s", name)
}
