// Package script holds what the Starlark modules of capyrun share: the state
// of a run and of its threads, the unpacking of arguments, conversion between
// Starlark and Go values, failures, and access to host files. It knows no
// module and is known to all.
package script

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
)

// Config is what a run is made of. The fields are not changed once the run has
// begun.
type Config struct {
	// Provider makes sandboxes. Nil: there are none, and asking for one fails.
	Provider provider.Provider
	// Files is what scripts see of the host.
	Files *Files
	// Load makes the globals of a module that a thread loads.
	Load func(th *starlark.Thread, module string) (starlark.StringDict, error)
	// AllowsEnv says which variables host.env may read, and Getenv reads them.
	AllowsEnv func(name string) bool
	Getenv    func(name string) (value string, set bool)
	// Print gets each line that a script prints, beside the event.
	Print func(line string)
	// Clock is the time that scripts see. Nil: time.Now.
	Clock func() time.Time
	// MayKeep creates sandboxes so that they can outlive the run.
	MayKeep bool
	// ExecTimeout bounds commands for which the script gives no timeout.
	ExecTimeout time.Duration
	// Steps bounds the Starlark steps of all threads together.
	Steps uint64
	// Output bounds the bytes that scripts print.
	Output int64
	// UpdateGolden makes assert.golden write files instead of comparing.
	UpdateGolden bool
}

// Run is one execution of a workflow: what all of its threads share. Its
// methods are safe to call at once.
type Run struct {
	Config
	budget  atomic.Int64 // steps that no thread has drawn yet
	used    atomic.Uint64
	printed atomic.Int64
	threads atomic.Int64

	mu     sync.Mutex
	ctx    context.Context // of the present phase
	cancel context.CancelCauseFunc
	defers []Deferred
	owned  map[string]Owned
	held   map[string][]io.Closer // by sandbox
}

// Owned is a sandbox that the run created.
type Owned struct {
	Sandbox provider.Sandbox
	Kept    bool // outlives the run because the script said so
}

// Deferred is a call to make at the end of the run.
type Deferred struct {
	Func   starlark.Callable
	Args   starlark.Tuple
	Kwargs []starlark.Tuple
}

// NewRun returns a run. [Run.Begin] must be called before its first thread.
func NewRun(c Config) *Run {
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return &Run{Config: c, owned: map[string]Owned{}, held: map[string][]io.Closer{}}
}

// Begin starts a phase of the run: the workflow itself, then its cleanup. Each
// has a context and a budget of steps of its own, so that a run that was
// cancelled or has used up its steps can still clean up. stop ends the phase.
func (r *Run) Begin(parent context.Context) (ctx context.Context, stop context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	r.mu.Lock()
	r.ctx, r.cancel = ctx, cancel
	r.mu.Unlock()
	r.budget.Store(int64(min(r.Steps, 1<<62)))
	return ctx, cancel
}

// Context returns the context of the present phase, for values that are asked
// for something without a thread, as an attribute is.
func (r *Run) Context() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ctx
}

// Stop ends the present phase; cause becomes its context's cause.
func (r *Run) Stop(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cancel(cause)
}

// StepsUsed returns the steps that finished threads have taken.
func (r *Run) StepsUsed() uint64 { return r.used.Load() }

// Own registers a sandbox, to be destroyed at the end of the run.
func (r *Run) Own(sb provider.Sandbox, kept bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owned[sb.Name()] = Owned{sb, kept}
}

// Disown forgets a sandbox that was destroyed, and closes what was held with it.
func (r *Run) Disown(name string) {
	r.mu.Lock()
	held := r.held[name]
	delete(r.owned, name)
	delete(r.held, name)
	r.mu.Unlock()
	closeAll(held)
}

// Hold keeps something that ends with the sandbox or with the run, whichever
// comes first.
func (r *Run) Hold(sandbox string, c io.Closer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[sandbox] = append(r.held[sandbox], c)
}

// Release closes what is held.
func (r *Run) Release() {
	r.mu.Lock()
	var held []io.Closer
	for _, list := range r.held {
		held = append(held, list...)
	}
	clear(r.held)
	r.mu.Unlock()
	closeAll(held)
}

// closeAll drops the errors: what is held is on its way out either way.
func closeAll(list []io.Closer) {
	for _, c := range list {
		c.Close()
	}
}

// Owned returns the sandboxes that the run created and that still exist, in no
// particular order.
func (r *Run) Owned() []Owned {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]Owned, 0, len(r.owned))
	for _, o := range r.owned {
		list = append(list, o)
	}
	return list
}

// Defer registers a call to make at the end of the run.
func (r *Run) Defer(d Deferred) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.defers = append(r.defers, d)
}

// HasDeferred reports whether there are calls to make at the end of the run.
func (r *Run) HasDeferred() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.defers) > 0
}

// PopDeferred takes the most recently deferred call.
func (r *Run) PopDeferred() (Deferred, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.defers) == 0 {
		return Deferred{}, false
	}
	last := len(r.defers) - 1
	d := r.defers[last]
	r.defers = r.defers[:last]
	return d, true
}

// A Limit is the error of a script that has used up something.
type Limit string

func (l Limit) Error() string { return string(l) }

// stepChunk is how many steps a thread draws from the budget at once, so that
// threads do not contend for every step. A run may stop short of its limit by
// that much for each thread.
const stepChunk = 10_000

// draw gives the thread more steps, or stops the run where none are left.
func (t *Thread) draw() {
	left := t.budget.Add(-stepChunk)
	if left <= -stepChunk { // nothing was left to draw
		t.Stop(Limit(fmt.Sprintf("the script took more than %d steps", t.Steps)))
		t.starlark.Cancel("too many steps")
		return
	}
	t.checkDepth()
	t.granted = t.starlark.Steps + uint64(stepChunk+min(left, 0))
	t.starlark.SetMaxExecutionSteps(t.granted)
}

// settle gives back what the thread has not used of its steps.
func (t *Thread) settle() {
	t.used.Add(t.starlark.Steps)
	if t.granted > t.starlark.Steps {
		t.budget.Add(int64(t.granted - t.starlark.Steps))
	}
}

func (r *Run) print(ctx context.Context, msg string) {
	for line := range strings.SplitSeq(strings.TrimSuffix(msg, "\n"), "\n") {
		if n := r.printed.Add(int64(len(line)) + 1); r.Output > 0 && n > r.Output {
			r.Stop(Limit(fmt.Sprintf("the script printed more than %d bytes", r.Output)))
			return
		}
		if r.Config.Print != nil {
			r.Config.Print(line)
		}
		event.Emit(ctx, event.Event{Type: event.Print, Text: line})
	}
}

// errNoProvider is the answer to a script that asks for sandboxes where the
// embedding program supplies none.
var errNoProvider = errors.New("this program runs workflows without a sandbox provider")

// Sandboxes returns the run's provider, or an error where it has none.
func (r *Run) Sandboxes() (provider.Provider, error) {
	if r.Provider == nil {
		return nil, &provider.Error{Kind: provider.ErrUnreachable, Err: errNoProvider}
	}
	return r.Provider, nil
}
