package docker_test

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/internal/testenv"
	"github.com/capybara-hq/capyrun/provider"
)

// attempt is one operation that is under way when the fault comes.
type attempt struct {
	what  string
	err   error
	ended time.Time
}

// attempts runs operations at once.
type attempts struct {
	wg  sync.WaitGroup
	mu  sync.Mutex
	all []attempt
}

func (a *attempts) run(what string, f func() error) {
	a.wg.Go(func() {
		err := f()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all = append(a.all, attempt{what, err, time.Now()})
	})
}

// everything begins each operation of a sandbox that takes long, and returns
// when all of them are under way. The commands note in /workspace that they ran.
// What reads from it waits for over.
func everything(t *testing.T, ctx context.Context, sb provider.Sandbox, a *attempts, over <-chan struct{}) {
	t.Helper()
	background, err := sb.Start(ctx, provider.Command{Shell: "echo x >> ran-background; nc -ll -p 8080 -e cat", Tag: "server"})
	if err != nil {
		t.Fatal(err)
	}
	run(t, sb, "mkdir big; head -c 20000000 /dev/zero > big/file")
	a.run("exec", func() error {
		_, err := sb.Exec(ctx, provider.Command{Shell: "echo x >> ran-exec; sleep 1000"})
		return err
	})
	a.run("exec, streamed", func() error {
		_, err := sb.Exec(ctx, provider.Command{Shell: "echo x >> ran-streamed; while :; do echo line; done", OnOutput: func(provider.Stream, []byte) {}})
		return err
	})
	a.run("exec with input", func() error {
		_, err := sb.Exec(ctx, provider.Command{Shell: "echo x >> ran-input; cat > /dev/null", Stdin: endless{}})
		return err
	})
	a.run("wait", func() error { _, err := background.Wait(ctx); return err })
	a.run("write", func() error { return sb.WriteFile(ctx, "/tmp/written", endless{}, provider.WriteOptions{}) })
	a.run("upload", func() error {
		r, w := io.Pipe()
		defer r.Close()
		go func() {
			tw := tar.NewWriter(w)
			tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o644, Size: 1 << 32})
			io.Copy(tw, endless{})
		}()
		return sb.Upload(ctx, "uploaded", r)
	})
	// A reader that stops in the middle keeps these under way.
	for what, download := range map[string]func(w io.Writer) error{
		"download": func(w io.Writer) error { return sb.Download(ctx, "big", w) },
		"read": func(w io.Writer) error {
			r, err := sb.OpenFile(ctx, "big/file", provider.ReadOptions{})
			if err != nil {
				return err
			}
			defer r.Close()
			_, err = io.Copy(w, r)
			return err
		},
	} {
		a.run(what, func() error { return download(&stopping{over: over}) })
	}
	var conn io.ReadWriteCloser
	until(t, "the server", 2*time.Minute, func() bool {
		c, err := sb.Dial(ctx, "tcp", "localhost:8080")
		conn = c
		return err == nil
	})
	if _, err := io.WriteString(conn, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	a.run("connection", func() error {
		defer conn.Close()
		_, err := conn.Read(make([]byte, 1))
		return err
	})
	until(t, "the commands' start", 2*time.Minute, func() bool {
		return run(t, sb, "cat ran-* | wc -l | tr -d ' '") == "4\n"
	})
}

// stopping takes a megabyte, and the rest after over.
type stopping struct {
	over <-chan struct{}
	n    int
}

func (s *stopping) Write(p []byte) (int, error) {
	if s.n += len(p); s.n > 1<<20 {
		<-s.over
	}
	return len(p), nil
}

// The engine ends in the middle of everything, and comes back.
func TestFaultEngine(t *testing.T) {
	binary := testenv.Binary(t)
	e := testenv.NewPrivateEngine(t)
	api := engineAt(t, e.Endpoint)
	for name, end := range map[string]func(testing.TB){"stopped": e.Stop, "killed": e.Kill} {
		t.Run(name, func(t *testing.T) {
			leak := goleak.IgnoreCurrent()
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
			defer cancel()
			p, err := docker.New(ctx, docker.Config{Endpoint: e.Endpoint, AgentBinary: binary, Image: testenv.Busybox, Labels: map[string]string{testLabel: "fault"}})
			if err != nil {
				t.Fatal(err)
			}
			sandboxes := createAll(ctx, t, p, "working", "destroyed", "suspended", "resumed")
			var wg sync.WaitGroup
			sb := sandboxes["working"]
			run(t, sb, "echo kept > kept")
			if err := sandboxes["resumed"].Suspend(ctx); err != nil {
				t.Fatal(err)
			}

			var working, engine, creates attempts
			over := make(chan struct{})
			everything(t, ctx, sb, &working, over)
			// Creates in all their stages, and the engine's other operations.
			for i := range 6 {
				spec := small(fmt.Sprintf("cap-fault-create-%d", i))
				creates.run(spec.Name, func() error {
					_, err := p.Create(ctx, spec)
					return err
				})
				time.Sleep(60 * time.Millisecond)
			}
			engine.run("destroy", func() error { return sandboxes["destroyed"].Destroy(ctx) })
			engine.run("suspend", func() error { return sandboxes["suspended"].Suspend(ctx) })
			engine.run("resume", func() error { return sandboxes["resumed"].Resume(ctx) })
			for what, f := range map[string]func() error{
				"list":  func() error { _, err := p.List(ctx); return err },
				"sweep": func() error { _, err := p.Sweep(ctx); return err },
			} {
				engine.run(what, func() error {
					for {
						if err := f(); err != nil {
							return err
						}
					}
				})
			}
			time.Sleep(30 * time.Millisecond) // the fault falls into the middle of them
			end(t)
			ended := time.Now()
			close(over)
			for _, a := range []*attempts{&working, &engine, &creates} {
				a.wg.Wait()
				for _, x := range a.all {
					t.Logf("%s: %v after the engine's end: %v", x.what, x.ended.Sub(ended).Round(time.Millisecond), x.err)
					if late := x.ended.Sub(ended); late > afterDeadline {
						t.Errorf("%s returned %v after the engine's end", x.what, late)
					}
				}
			}
			for _, x := range working.all {
				if x.what == "connection" && name == "stopped" && x.err != nil {
					continue // the agent ends the server first, which is an end like another
				}
				if !errors.Is(x.err, provider.ErrSessionLost) || !strings.Contains(x.err.Error(), "engine") {
					t.Errorf("%s: %v", x.what, x.err)
				}
			}
			for _, x := range append(engine.all, creates.all...) {
				if x.err != nil && !isOne(x.err, provider.ErrUnreachable, provider.ErrSessionLost) {
					t.Errorf("%s: %v", x.what, x.err)
				}
			}
			within(t, "an operation without an engine", afterDeadline, func() {
				if _, err := sb.Exec(ctx, provider.Command{Shell: "true"}); !errors.Is(err, provider.ErrUnreachable) {
					t.Errorf("without an engine: %v", err)
				}
			})

			e.Start(t)
			if got := run(t, sb, "cat kept; cat ran-* | wc -l"); got != "kept\n4\n" {
				t.Errorf("afterwards: %q", got)
			}
			if _, err := sb.Process(ctx, "server"); !errors.Is(err, provider.ErrGone) {
				t.Errorf("the background process: %v", err)
			}
			for _, name := range []string{"suspended", "resumed"} {
				if err := sandboxes[name].Resume(ctx); err != nil {
					t.Errorf("resume %s: %v", name, err)
				}
			}
			// What the engine has begun of a failed create is removed once it is back.
			for _, x := range creates.all {
				if x.err != nil {
					until(t, "the end of "+x.what, 2*time.Minute, func() bool { return len(leftAt(t, api, provider.LabelName+"="+x.what)) == 0 })
					continue
				}
				sb, err := p.Open(ctx, x.what)
				if err != nil {
					t.Errorf("%s: %v", x.what, err)
					continue
				}
				run(t, sb, "true")
				sandboxes[x.what] = sb
			}
			for _, sb := range sandboxes {
				wg.Go(func() {
					if err := sb.Destroy(ctx); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if l := leftAt(t, api, testLabel); len(l) > 0 {
				t.Errorf("left: %v", l)
			}
			api.Close() // its idle connections
			if err := goleak.Find(leak); err != nil {
				t.Error(err)
			}
		})
	}
}

// The engine hangs: it takes connections and says nothing. Whatever has a
// deadline keeps it.
func TestFaultEngineHangs(t *testing.T) {
	binary := testenv.Binary(t)
	e := testenv.NewPrivateEngine(t)
	api := engineAt(t, e.Endpoint)
	leak := goleak.IgnoreCurrent()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	p, err := docker.New(ctx, docker.Config{Endpoint: e.Endpoint, AgentBinary: binary, Image: testenv.Busybox, Labels: map[string]string{testLabel: "fault"}})
	if err != nil {
		t.Fatal(err)
	}
	const deadline = 1500 * time.Millisecond
	sandboxes := createAll(ctx, t, p, "working", "destroyed", "suspended", "resumed", "reached", "idle")
	var wg sync.WaitGroup
	if err := sandboxes["resumed"].Suspend(ctx); err != nil {
		t.Fatal(err)
	}
	sb := sandboxes["working"]
	other, err := p.Open(ctx, sandboxes["reached"].Name()) // has no connection yet
	if err != nil {
		t.Fatal(err)
	}

	short, stop := context.WithTimeout(ctx, deadline)
	defer stop()
	interrupted := errors.New("interrupted")
	ctrlC, interrupt := context.WithCancelCause(ctx)
	time.AfterFunc(deadline, func() { interrupt(interrupted) })
	var working, engine, creates attempts
	begin := time.Now()
	hung := make(chan struct{})
	go func() {
		<-time.After(700 * time.Millisecond)
		close(hung)
	}()
	creates.run("cap-fault-create-0", func() error { _, err := p.Create(ctrlC, small("cap-fault-create-0")); return err })
	for i := 1; i < 6; i++ {
		name := fmt.Sprintf("cap-fault-create-%d", i)
		creates.run(name, func() error {
			time.Sleep(time.Duration(i) * 120 * time.Millisecond) // all stages
			_, err := p.Create(short, small(name))
			return err
		})
	}
	<-hung
	e.Hang(t)
	working.run("exec", func() error { _, err := sb.Exec(short, provider.Command{Shell: "sleep 1000"}); return err })
	working.run("exec, cancelled", func() error { _, err := sb.Exec(ctrlC, provider.Command{Shell: "sleep 1000"}); return err })
	working.run("exec with a timeout", func() error {
		_, err := sandboxes["idle"].Exec(ctx, provider.Command{Shell: "sleep 1000", Timeout: deadline - time.Since(begin)})
		return err
	})
	working.run("write", func() error { return sb.WriteFile(short, "/tmp/written", endless{}, provider.WriteOptions{}) })
	working.run("read", func() error { _, err := sb.ReadFile(short, "x", provider.ReadOptions{}); return err })
	working.run("start", func() error { _, err := sb.Start(short, provider.Command{Shell: "sleep 1000"}); return err })
	working.run("dial", func() error { _, err := sb.Dial(short, "tcp", "localhost:8080"); return err })
	working.run("the first operation", func() error { _, err := other.Exec(short, provider.Command{Shell: "true"}); return err })
	engine.run("new", func() error {
		_, err := docker.New(short, docker.Config{Endpoint: e.Endpoint, AgentBinary: binary})
		return err
	})
	engine.run("open", func() error { _, err := p.Open(short, sb.Name()); return err })
	engine.run("list", func() error { _, err := p.List(short); return err })
	engine.run("sweep", func() error { _, err := p.Sweep(ctrlC); return err })
	engine.run("info", func() error { _, err := sb.Info(short); return err })
	engine.run("destroy", func() error { return sandboxes["destroyed"].Destroy(ctrlC) })
	engine.run("suspend", func() error { return sandboxes["suspended"].Suspend(short) })
	engine.run("resume", func() error { return sandboxes["resumed"].Resume(short) })
	for _, a := range []*attempts{&working, &engine, &creates} {
		a.wg.Wait()
		for _, x := range a.all {
			t.Logf("%s: %v: %v", x.what, x.ended.Sub(begin).Round(time.Millisecond), x.err)
			if late := x.ended.Sub(begin) - deadline; late > afterDeadline {
				t.Errorf("%s returned %v after its deadline", x.what, late)
			}
			if x.what == "exec with a timeout" {
				if !errors.Is(x.err, provider.ErrSessionLost) {
					t.Errorf("%s: %v", x.what, x.err)
				}
			} else if !isOne(x.err, context.DeadlineExceeded, interrupted) && (x.err != nil || a != &creates) {
				t.Errorf("%s: %v", x.what, x.err)
			}
		}
	}
	e.Continue(t)

	for _, sb := range []provider.Sandbox{sb, other, sandboxes["idle"], sandboxes["suspended"], sandboxes["resumed"]} {
		if got := run(t, sb, "echo alive"); got != "alive\n" {
			t.Errorf("%s afterwards: %q", sb.Name(), got)
		}
	}
	until(t, "the end of the cancelled commands", 2*time.Minute, func() bool {
		list, err := sb.Processes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, x := range list {
			if x.Running && !x.Background {
				n++
			}
		}
		return n == 0
	})
	for _, x := range creates.all {
		if x.err == nil {
			if err := p.Destroy(ctx, x.what); err != nil {
				t.Errorf("%s: %v", x.what, err)
			}
			continue
		}
		until(t, "the end of "+x.what, 2*time.Minute, func() bool { return len(leftAt(t, api, provider.LabelName+"="+x.what)) == 0 })
	}
	for _, sb := range sandboxes {
		wg.Go(func() {
			if err := sb.Destroy(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	e.Hang(t)
	within(t, "Close", afterDeadline+time.Second, func() { p.Close() })
	e.Continue(t)
	if l := leftAt(t, api, testLabel); len(l) > 0 {
		t.Errorf("left: %v", l)
	}
	api.Close()
	if err := goleak.Find(leak); err != nil {
		t.Error(err)
	}
}

// createAll creates sandboxes at once, and returns them by what they are for.
func createAll(ctx context.Context, t *testing.T, p provider.Provider, uses ...string) map[string]provider.Sandbox {
	t.Helper()
	sandboxes := map[string]provider.Sandbox{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, use := range uses {
		wg.Go(func() {
			sb, err := p.Create(ctx, small("cap-fault-"+use))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			sandboxes[use] = sb
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return sandboxes
}
