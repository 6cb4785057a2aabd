package flow

import (
	"context"
	"fmt"
	"math"
	"time"

	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/starlib/script"
)

// retry(fn, attempts, delay, backoff, max_delay) calls fn() until it does not
// fail, at most attempts times (3 by default), and returns what it returns. It
// waits for delay ("1s") after the first failure and backoff (2) times as long
// after each further one, but never longer than max_delay ("30s"). The last
// failure is the error.
func retry(t *script.Thread, th *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var (
		fn       starlark.Callable
		attempts = script.Count(3)
		delay    = script.Duration(time.Second)
		backoff  = script.Number(2)
		maxDelay = script.Duration(30 * time.Second)
	)
	if err := script.Unpack(args, kwargs, "fn", &fn, "attempts??", &attempts, "delay??", &delay, "backoff??", &backoff, "max_delay??", &maxDelay); err != nil {
		return nil, err
	}
	return spanned(t, event.Event{Kind: event.KindWait, Name: "retry " + fn.Name()}, func() (starlark.Value, error) {
		pause := time.Duration(delay)
		for n := script.Count(1); ; n++ {
			v, err := starlark.Call(th, fn, nil, nil)
			switch {
			case err == nil || t.Canceled():
				return v, err
			case n == attempts && n == 1:
				return nil, err
			case n == attempts:
				return nil, fmt.Errorf("attempt %d of %d: %w", n, attempts, err)
			}
			pause = min(pause, time.Duration(maxDelay))
			event.Emit(t.Ctx, event.Event{Type: event.Progress, Text: fmt.Sprintf("attempt %d of %d failed, next in %v: %v", n, attempts, pause, err)})
			if err := script.Sleep(t.Ctx, pause); err != nil {
				return nil, err
			}
			// A float, so that a large backoff cannot overflow.
			pause = time.Duration(math.Min(float64(pause)*float64(backoff), math.MaxInt64/2))
		}
	})
}

// wait_until(fn, timeout, interval) calls fn() every interval ("500ms") until
// what it returns is true, and returns that. Failures of fn count as not yet.
// When the timeout ("1m") passes, a call in progress is stopped, and the error
// has kind "timed out" and tells the last failure or value.
func waitUntil(t *script.Thread, th *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var (
		fn       starlark.Callable
		timeout  = script.Timeout(time.Minute)
		interval = script.Duration(500 * time.Millisecond)
	)
	if err := script.Unpack(args, kwargs, "fn", &fn, "timeout??", &timeout, "interval??", &interval); err != nil {
		return nil, err
	}
	expired := &script.Failure{Kind: script.KindTimedOut, Msg: fmt.Sprintf("%s was not true within %v", fn.Name(), time.Duration(timeout))}
	ctx, cancel := context.WithTimeoutCause(t.Ctx, time.Duration(timeout), expired)
	defer cancel()
	var last error
	v, err := t.Under(ctx, func() (starlark.Value, error) {
		return spanned(t, event.Event{Kind: event.KindWait, Name: "wait until " + fn.Name()}, func() (starlark.Value, error) {
			for {
				v, err := starlark.Call(th, fn, nil, nil)
				switch {
				case err == nil && bool(v.Truth()):
					return v, nil
				case t.Canceled():
					return nil, context.Cause(t.Ctx)
				case err != nil:
					last = err
				default:
					last = fmt.Errorf("it returned %s", script.Short(v))
				}
				if err := script.Sleep(t.Ctx, time.Duration(interval)); err != nil {
					return nil, err
				}
			}
		})
	})
	if err != nil && context.Cause(ctx) == error(expired) {
		if last == nil {
			return nil, expired
		}
		// Not expired itself: as the context's cause it may be read elsewhere.
		return nil, &script.Failure{Kind: expired.Kind, Msg: expired.Msg + "; the last time: " + last.Error(), Err: last}
	}
	return v, err
}
