package script

import (
	"context"
	"fmt"
	"time"

	startime "go.starlark.net/lib/time"
	"go.starlark.net/starlark"
)

const threadKey = "capyrun.thread"

// maxThreads bounds the Starlark threads of a run that exist at once. Each is
// a goroutine, and neither the steps nor the heap that a script is charged for
// show what goroutines cost.
const maxThreads = 10_000

// maxDepth bounds how deep threads start threads. The dialect has no recursion,
// but the interpreter cannot see it across threads.
const maxDepth = 32

// Thread is what the modules know about a Starlark thread. Like the Starlark
// thread itself it belongs to one goroutine.
type Thread struct {
	*Run
	// Ctx bounds every builtin that the thread calls and carries its position in
	// the stream of events.
	Ctx context.Context

	starlark *starlark.Thread
	depth    int    // threads above this one
	granted  uint64 // steps that the thread may take before it draws again

	untilCheck, checkInterval int // draws, see checkDepth
}

// From returns the state of a thread that belongs to a run. It panics for
// other threads: the modules only work within a run.
func From(th *starlark.Thread) *Thread {
	t, ok := th.Local(threadKey).(*Thread)
	if !ok {
		panic("script.From: the thread does not belong to a run")
	}
	return t
}

// Do runs fn with a new Starlark thread on the calling goroutine. The thread
// stops when ctx is done. parent is the thread that starts it, nil for the
// first.
func (r *Run) Do(ctx context.Context, parent *Thread, name string, fn func(*starlark.Thread) (starlark.Value, error)) (starlark.Value, error) {
	t := &Thread{Run: r, Ctx: ctx, untilCheck: minCheckInterval, checkInterval: minCheckInterval}
	if parent != nil {
		t.depth = parent.depth + 1
	}
	if t.depth > maxDepth {
		return nil, fmt.Errorf("parallel functions are nested more than %d deep", maxDepth)
	}
	if n := r.threads.Add(1); n > maxThreads {
		r.threads.Add(-1)
		return nil, fmt.Errorf("more than %d functions run at once", maxThreads)
	}
	defer r.threads.Add(-1)

	th := &starlark.Thread{Name: name, Load: r.Load}
	t.starlark = th
	th.Print = func(_ *starlark.Thread, msg string) { r.print(t.Ctx, msg) }
	th.OnMaxSteps = func(*starlark.Thread) { t.draw() }
	th.SetLocal(threadKey, t)
	startime.SetNow(th, func() (time.Time, error) { return r.Clock(), nil })
	t.draw()
	defer t.settle()

	stop := context.AfterFunc(ctx, func() { th.Cancel("cancelled") })
	defer stop()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return fn(th)
}

// Under runs fn on the thread with ctx, which is derived from the thread's
// present context, in place of it. When ctx is done, Starlark code within fn
// stops; the thread itself goes on. The caller finds out why by ctx's cause.
func (t *Thread) Under(ctx context.Context, fn func() (starlark.Value, error)) (starlark.Value, error) {
	outer := t.Ctx
	t.Ctx = ctx
	cancelled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		t.starlark.Cancel("cancelled")
		close(cancelled)
	})
	defer func() {
		t.Ctx = outer
		if stop() {
			return
		}
		<-cancelled
		// The outer context may have been done as well, and its own Cancel
		// been lost because the thread was cancelled already.
		t.starlark.Uncancel()
		if outer.Err() != nil {
			t.starlark.Cancel("cancelled")
		}
	}()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return fn()
}

// Freeze makes everything immutable that a function running on another thread
// could share with this one: the values given, and the globals of modules that
// are still being initialised, which [starlark.Function.Freeze] leaves out.
// Without it two threads could change one list at once.
func (t *Thread) Freeze(values ...starlark.Value) error {
	for i := range t.starlark.CallStackDepth() {
		if fn, ok := t.starlark.DebugFrame(i).Callable().(*starlark.Function); ok {
			for _, v := range fn.Globals() {
				values = append(values, v)
			}
		}
	}
	return Freeze(values...)
}

// Sleep waits, or returns the cause of ctx once that is done.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
