// Package flow is the Starlark module that runs functions: in parallel, again,
// within a time, at the end. The comments on its functions are the manual for
// authors of workflows.
package flow

import (
	"context"
	"fmt"
	"time"

	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/starlib/script"
)

// Module is the flow module:
//
//   - parallel(fns, limit), map(fn, items, limit): at the same time
//   - retry(fn, attempts, delay, backoff, max_delay): again after a failure
//   - wait_until(fn, timeout, interval): until it is true
//   - within(timeout, fn): no longer than that
//   - attempt(fn, *args, **kwargs): an error as a value
//   - defer(fn, *args, **kwargs): at the end of the run
//   - sleep(d)
//   - step(name, fn): a named group in progress and reports
var Module = script.NewModule("flow", map[string]script.Function{
	"parallel":   parallel,
	"map":        mapItems,
	"retry":      retry,
	"wait_until": waitUntil,
	"within":     within,
	"attempt":    attempt,
	"defer":      deferCall,
	"sleep":      sleep,
	"step":       step,
})

// within(timeout, fn) calls fn() and returns what it returns. When the timeout
// passes first, whatever fn is doing is stopped, commands in sandboxes included,
// and the error has kind "timed out".
func within(t *script.Thread, th *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var timeout script.Timeout
	var fn starlark.Callable
	if err := script.Unpack(args, kwargs, "timeout", &timeout, "fn", &fn); err != nil {
		return nil, err
	}
	expired := &script.Failure{Kind: script.KindTimedOut, Msg: fmt.Sprintf("%v passed", time.Duration(timeout))}
	ctx, cancel := context.WithTimeoutCause(t.Ctx, time.Duration(timeout), expired)
	defer cancel()
	v, err := t.Under(ctx, func() (starlark.Value, error) { return starlark.Call(th, fn, nil, nil) })
	if err != nil && context.Cause(ctx) == error(expired) {
		return nil, expired
	}
	return v, err
}

// attempt(fn, *args, **kwargs) calls fn with the arguments and returns
// (value, None) or, where fn fails, (None, error). The error has .kind,
// .message and .result, which is how a command ended, or None. Kinds are
// "command failed", "timed out", "assertion failed", "script error" and those of
// sandboxes and files: "not found", "gone", "already exists", "image not found"
// and so on.
//
// It does not catch the end of the run itself: a cancelled or timed out run
// stops, and so does one that has used up a limit.
func attempt(t *script.Thread, th *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	fn, rest, err := callee(args)
	if err != nil {
		return nil, err
	}
	v, err := starlark.Call(th, fn, rest, kwargs)
	switch {
	case err == nil:
		return starlark.Tuple{v, starlark.None}, nil
	case t.Canceled():
		return nil, err
	}
	kind, msg := script.KindOf(err), err.Error()
	return starlark.Tuple{starlark.None, script.NewRecord("error", starlark.StringDict{
		"kind":    starlark.String(kind),
		"message": starlark.String(msg),
		"result":  script.ValueOf(err),
	}, func() string {
		return fmt.Sprintf("<error %s: %s>", kind, msg)
	})}, nil
}

// defer(fn, *args, **kwargs) makes that call at the end of the run: after main,
// also when it failed or was cancelled, and before the sandboxes are destroyed.
// The last one deferred is the first one called. Deferred calls have a time of
// their own, and a failing one does not keep the others from being made.
func deferCall(t *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	fn, rest, err := callee(args)
	if err != nil {
		return nil, err
	}
	t.Defer(script.Deferred{Func: fn, Args: rest, Kwargs: kwargs})
	return starlark.None, nil
}

func callee(args starlark.Tuple) (starlark.Callable, starlark.Tuple, error) {
	if len(args) == 0 {
		return nil, nil, fmt.Errorf(`missing argument "fn"`)
	}
	fn, ok := args[0].(starlark.Callable)
	if !ok {
		return nil, nil, fmt.Errorf("fn: got %s, want a function", args[0].Type())
	}
	return fn, args[1:], nil
}

// sleep(d) waits for a duration.
func sleep(t *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var d script.Duration
	if err := script.Unpack(args, kwargs, "d", &d); err != nil {
		return nil, err
	}
	ctx, span := event.Begin(t.Ctx, event.Event{Kind: event.KindWait, Name: "sleep " + time.Duration(d).String()})
	err := script.Sleep(ctx, time.Duration(d))
	span.End(err, nil)
	return starlark.None, err
}

// step(name, fn) calls fn() and returns what it returns. Progress and reports
// show what happens in it as a group of that name.
func step(t *script.Thread, th *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var name string
	var fn starlark.Callable
	if err := script.Unpack(args, kwargs, "name", &name, "fn", &fn); err != nil {
		return nil, err
	}
	return spanned(t, event.Event{Kind: event.KindStep, Name: name}, func() (starlark.Value, error) {
		return starlark.Call(th, fn, nil, nil)
	})
}

// spanned calls fn as a span of the thread's events.
func spanned(t *script.Thread, start event.Event, fn func() (starlark.Value, error)) (starlark.Value, error) {
	outer := t.Ctx
	ctx, span := event.Begin(outer, start)
	t.Ctx = ctx
	v, err := fn()
	t.Ctx = outer
	span.End(err, nil)
	return v, err
}
