package pool_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/provider/pool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine is a provider of sandboxes that are no more than an entry here.
type engine struct {
	provider.Provider // what the pool must not call

	mu      sync.Mutex
	gate    chan struct{} // a create waits for it; nil: none does
	fail    error         // of creates
	states  map[string]provider.State
	specs   map[string]provider.Spec
	created int
	closed  bool
}

func newEngine() *engine {
	return &engine{states: map[string]provider.State{}, specs: map[string]provider.Spec{}}
}

func (e *engine) Create(ctx context.Context, spec provider.Spec) (provider.Sandbox, error) {
	e.mu.Lock()
	gate := e.gate
	e.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.fail != nil {
		return nil, e.fail
	}
	if spec.Name == "" {
		spec.Name = provider.GenerateName()
	}
	e.created++
	e.states[spec.Name], e.specs[spec.Name] = provider.StateRunning, spec
	return &box{e: e, name: spec.Name}, nil
}

func (e *engine) Open(_ context.Context, name string) (provider.Sandbox, error) {
	return &box{e: e, name: name}, nil
}

func (e *engine) List(context.Context) ([]provider.Info, error) {
	var list []provider.Info
	for _, name := range e.names() {
		list = append(list, provider.Info{Name: name})
	}
	return list, nil
}

func (e *engine) Destroy(_ context.Context, name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.states[name]; !ok {
		return provider.ErrGone
	}
	delete(e.states, name)
	return nil
}

func (e *engine) Close() error {
	e.closed = true
	return nil
}

// names are those of the sandboxes that exist.
func (e *engine) names() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.states))
}

// box is a sandbox of an engine. A command's output is its environment.
type box struct {
	provider.Sandbox
	e    *engine
	name string
}

func (b *box) Name() string { return b.name }

func (b *box) Info(context.Context) (provider.Info, error) {
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	if state, ok := b.e.states[b.name]; ok {
		return provider.Info{Name: b.name, State: state}, nil
	}
	return provider.Info{}, provider.ErrGone
}

func (b *box) Destroy(ctx context.Context) error { return b.e.Destroy(ctx, b.name) }

func (b *box) Exec(_ context.Context, cmd provider.Command) (*provider.Result, error) {
	var out []byte
	for _, name := range slices.Sorted(maps.Keys(cmd.Env)) {
		out = append(out, name+"="+cmd.Env[name]+"\n"...)
	}
	return &provider.Result{Stdout: out}, nil
}

// spec is what a sandbox was created from.
func (e *engine) spec(name string) provider.Spec {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.specs[name]
}

// wait returns when the engine has n sandboxes.
func (e *engine) wait(t *testing.T, n int) []string {
	t.Helper()
	return e.until(t, func(names []string) bool { return len(names) == n })
}

// until returns the names of the sandboxes when they are as they should be.
func (e *engine) until(t *testing.T, want func(names []string) bool) []string {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		names := e.names()
		if want(names) {
			return names
		}
		if time.Now().After(end) {
			t.Fatalf("there are %d sandboxes: %v", len(names), names)
		}
	}
}

func newPool(t *testing.T, e *engine, o pool.Options) *pool.Provider {
	t.Helper()
	p := pool.New(e, o)
	t.Cleanup(func() { p.Close() })
	return p
}

func create(t *testing.T, p provider.Provider, spec provider.Spec) provider.Sandbox {
	t.Helper()
	sb, err := p.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// Each sandbox is handed out once, and was there before it was asked for.
func TestHandedOutOnce(t *testing.T) {
	e := newEngine()
	p := newPool(t, e, pool.Options{Ahead: 3})
	create(t, p, provider.Spec{Image: "a"})
	seen := map[string]bool{}
	for range 20 {
		waiting := e.wait(t, 4+len(seen))
		name := create(t, p, provider.Spec{Image: "a", Memory: provider.DefaultMemory}).Name()
		if !slices.Contains(waiting, name) {
			t.Errorf("%s was not started ahead", name)
		}
		if seen[name] {
			t.Errorf("%s was handed out twice", name)
		}
		seen[name] = true
	}
	e.wait(t, 4+len(seen))
}

// Many at once get one each, whether it is ready or only begun.
func TestAtOnce(t *testing.T) {
	e := newEngine()
	p := newPool(t, e, pool.Options{Ahead: 4})
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			sb, err := p.Create(context.Background(), provider.Spec{})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if seen[sb.Name()] {
				t.Errorf("%s was handed out twice", sb.Name())
			}
			seen[sb.Name()] = true
		})
	}
	wg.Wait()
	if len(seen) != 50 {
		t.Errorf("%d sandboxes for 50 creates", len(seen))
	}
}

// What is for one sandbox alone does not come from the pool, and fills none.
func TestNotPooled(t *testing.T) {
	for name, spec := range map[string]provider.Spec{
		"name":    {Name: "x"},
		"labels":  {Labels: map[string]string{"a": "b"}},
		"ttl":     {TTL: time.Minute},
		"keep":    {Keep: true},
		"replace": {Replace: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine()
			p := newPool(t, e, pool.Options{})
			create(t, p, provider.Spec{})
			e.wait(t, 1+pool.DefaultAhead)
			sb := create(t, p, spec)
			if got := e.spec(sb.Name()); got.Keep != spec.Keep || got.TTL != spec.TTL || len(got.Labels) != len(spec.Labels) {
				t.Errorf("created as %+v", got)
			}
			e.wait(t, 2+pool.DefaultAhead)
			if e.created != 2+pool.DefaultAhead {
				t.Errorf("%d were created", e.created)
			}
		})
	}
}

// Specs of which anything differs that a container is made from do not share.
func TestKinds(t *testing.T) {
	base := provider.Spec{Image: "a"}
	for name, other := range map[string]provider.Spec{
		"image":  {Image: "b"},
		"cpu":    {Image: "a", CPU: 2},
		"memory": {Image: "a", Memory: 64 << 20},
		"disk":   {Image: "a", Disk: 64 << 20},
		"pids":   {Image: "a", PIDs: 64},
		"egress": {Image: "a", Egress: provider.EgressOpen},
		"hosts":  {Image: "a", Egress: provider.EgressAllowlist, AllowHosts: []string{"example.com"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine()
			p := newPool(t, e, pool.Options{Ahead: 1})
			create(t, p, base)
			e.wait(t, 2)
			sb := create(t, p, other)
			if got := e.spec(sb.Name()); got.Image != other.Image || got.CPU != other.CPU || got.Memory != other.Memory ||
				got.Disk != other.Disk || got.PIDs != other.PIDs || got.Egress != other.Egress || !slices.Equal(got.AllowHosts, other.AllowHosts) {
				t.Errorf("asked for %+v, got %+v", other, got)
			}
		})
	}
}

// The environment goes to commands, and never into what waits.
func TestEnvironment(t *testing.T) {
	e := newEngine()
	p := newPool(t, e, pool.Options{Ahead: 1})
	spec := provider.Spec{Env: map[string]string{"SECRET": "1", "B": "2"}}
	for range 3 {
		sb := create(t, p, spec)
		opened, err := p.Open(t.Context(), sb.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range []provider.Sandbox{sb, opened} {
			r, err := sb.Exec(t.Context(), provider.Command{Shell: "env", Env: map[string]string{"B": "3", "C": "4"}})
			if err != nil || string(r.Stdout) != "B=3\nC=4\nSECRET=1\n" {
				t.Errorf("got %q, %v", r.Stdout, err)
			}
		}
	}
	other := create(t, p, provider.Spec{})
	if r, err := other.Exec(t.Context(), provider.Command{Shell: "env"}); err != nil || len(r.Stdout) > 0 {
		t.Errorf("another sandbox has %q, %v", r.Stdout, err)
	}
	for _, name := range e.names() {
		if env := e.spec(name).Env; len(env) > 0 {
			t.Errorf("%s was created with %v", name, env)
		}
	}
}

// What died while it waited is not handed out, and is removed.
func TestDeadWhileWaiting(t *testing.T) {
	e := newEngine()
	p := newPool(t, e, pool.Options{Ahead: 2})
	first := create(t, p, provider.Spec{})
	var dead []string
	for _, name := range e.wait(t, 3) {
		if name != first.Name() {
			e.mu.Lock()
			e.states[name] = provider.StateDead
			e.mu.Unlock()
			dead = append(dead, name)
		}
	}
	second := create(t, p, provider.Spec{})
	if slices.Contains(dead, second.Name()) {
		t.Error("a dead sandbox was handed out")
	}
	e.until(t, func(names []string) bool {
		return len(names) == 4 && !slices.ContainsFunc(names, func(name string) bool { return slices.Contains(dead, name) })
	})
}

// The pool gives no more than its bounds, and makes room for what is wanted now.
func TestBounds(t *testing.T) {
	for name, o := range map[string]pool.Options{
		"count":  {Ahead: 2, Total: 4},
		"memory": {Ahead: 2, Memory: 4 * provider.DefaultMemory},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine()
			p := newPool(t, e, o)
			for _, image := range []string{"a", "b", "c"} {
				create(t, p, provider.Spec{Image: image})
			}
			e.until(t, func(names []string) bool {
				count := map[string]int{}
				for _, name := range names {
					count[e.spec(name).Image]++
				}
				// One of each is in use.
				return count["a"] == 1 && count["b"] == 3 && count["c"] == 3
			})
		})
	}
}

// Only what a pool may hold at all is started ahead.
func TestTooLarge(t *testing.T) {
	e := newEngine()
	p := newPool(t, e, pool.Options{Memory: 1 << 30})
	create(t, p, provider.Spec{Memory: 2 << 30})
	create(t, p, provider.Spec{Memory: 2 << 30})
	if e.created != 2 {
		t.Errorf("%d were created", e.created)
	}
}

// A create that fails ahead of time fails for whoever asks next, with its own
// error, and stops being tried.
func TestFailure(t *testing.T) {
	e := newEngine()
	p := newPool(t, e, pool.Options{Ahead: 1})
	create(t, p, provider.Spec{})
	e.wait(t, 2)
	e.mu.Lock()
	e.fail = errors.New("the engine is full")
	e.mu.Unlock()
	create(t, p, provider.Spec{}) // the one that waits
	if _, err := p.Create(t.Context(), provider.Spec{}); !errors.Is(err, e.fail) {
		t.Errorf("got %v", err)
	}
	e.mu.Lock()
	e.fail = nil
	e.mu.Unlock()
	create(t, p, provider.Spec{})
	e.wait(t, 4)
}

// A create that is cancelled while it waits for one that is being started.
func TestCancel(t *testing.T) {
	e := newEngine()
	p := newPool(t, e, pool.Options{Ahead: 1})
	create(t, p, provider.Spec{})
	e.wait(t, 2)
	e.mu.Lock()
	e.gate = make(chan struct{})
	e.mu.Unlock()
	create(t, p, provider.Spec{}) // its successor hangs
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	go cancel(why)
	if _, err := p.Create(ctx, provider.Spec{}); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	e.wait(t, 2)
}

// A list shows what scripts have asked for.
func TestList(t *testing.T) {
	e := newEngine()
	p := newPool(t, e, pool.Options{})
	sb := create(t, p, provider.Spec{})
	e.wait(t, 1+pool.DefaultAhead)
	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Name != sb.Name() {
		t.Errorf("got %v, %v", list, err)
	}
}

// Close removes what waits and what is being started, leaves what was handed
// out, and closes the provider.
func TestClose(t *testing.T) {
	e := newEngine()
	p := pool.New(e, pool.Options{})
	sb := create(t, p, provider.Spec{})
	e.wait(t, 1+pool.DefaultAhead)
	e.mu.Lock()
	e.gate = make(chan struct{})
	e.mu.Unlock()
	other := create(t, p, provider.Spec{}) // what takes its place hangs
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	want := []string{sb.Name(), other.Name()}
	slices.Sort(want)
	if got := e.names(); !slices.Equal(got, want) || !e.closed {
		t.Errorf("left: %v, want %v; closed %v", got, want, e.closed)
	}
}

// Bad specs are refused as they are without a pool.
func TestInvalid(t *testing.T) {
	p := newPool(t, newEngine(), pool.Options{})
	for _, spec := range []provider.Spec{{CPU: -1}, {Env: map[string]string{"1": ""}}} {
		if _, err := p.Create(t.Context(), spec); !errors.Is(err, provider.ErrInvalid) {
			t.Errorf("%+v: got %v", spec, err)
		}
	}
}
