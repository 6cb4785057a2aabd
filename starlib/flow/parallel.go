package flow

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/starlib/script"
)

// defaultLimit is how many branches run at once where the script does not say.
// Branches mostly wait for sandboxes, so it has little to do with processors.
const defaultLimit = 64

// parallel(fns, limit) calls all the functions at the same time, at most limit
// of them at once (64 by default), and returns their results in order. The first
// failure stops the others, commands in sandboxes included, and is the error.
//
// What the functions can reach is frozen first: they cannot change a list, dict
// or set that others see.
func parallel(t *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var fns starlark.Iterable
	var limit script.Count
	if err := script.Unpack(args, kwargs, "fns", &fns, "limit??", &limit); err != nil {
		return nil, err
	}
	var branches []branch
	for v := range starlark.Elements(fns) {
		fn, ok := v.(starlark.Callable)
		if !ok {
			return nil, fmt.Errorf("fns: element %d: got %s, want a function", len(branches), v.Type())
		}
		branches = append(branches, branch{name: fn.Name(), fn: fn})
	}
	return run(t, branches, int(limit))
}

// map(fn, items, limit) calls fn(item) for all the items at the same time, as
// flow.parallel does, and returns the results in the order of the items.
func mapItems(t *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var fn starlark.Callable
	var items starlark.Iterable
	var limit script.Count
	if err := script.Unpack(args, kwargs, "fn", &fn, "items", &items, "limit??", &limit); err != nil {
		return nil, err
	}
	var branches []branch
	for v := range starlark.Elements(items) {
		branches = append(branches, branch{name: script.Title(v), fn: fn, args: starlark.Tuple{v}})
	}
	return run(t, branches, int(limit))
}

type branch struct {
	name string // for people: the function, or the item
	fn   starlark.Callable
	args starlark.Tuple
}

func (b branch) title(i int) string { return fmt.Sprintf("%d: %s", i+1, b.name) }

// run calls the branches on threads of their own and returns when all have
// ended.
func run(t *script.Thread, branches []branch, limit int) (starlark.Value, error) {
	if limit == 0 {
		limit = defaultLimit
	}
	shared := make([]starlark.Value, 0, 2*len(branches))
	for _, b := range branches {
		shared = append(shared, b.fn, b.args)
	}
	if err := t.Freeze(shared...); err != nil {
		return nil, err
	}
	// The cause of the context is the first failure, whichever branch has it.
	ctx, cancel := context.WithCancelCause(t.Ctx)
	defer cancel(nil)
	results := make([]starlark.Value, len(branches))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(limit, len(branches)) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(branches) {
					return
				}
				v, err := branches[i].call(ctx, t, i)
				if err != nil {
					cancel(fmt.Errorf("branch %s: %w", branches[i].title(i), err))
				}
				results[i] = v
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return starlark.NewList(results), nil
}

func (b branch) call(ctx context.Context, parent *script.Thread, i int) (starlark.Value, error) {
	ctx, span := event.Begin(ctx, event.Event{Kind: event.KindBranch, Name: b.title(i)})
	v, err := parent.Do(ctx, parent, "branch "+b.title(i), func(th *starlark.Thread) (starlark.Value, error) {
		return starlark.Call(th, b.fn, b.args, nil)
	})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // stopped by another branch's failure or from outside
	}
	span.End(err, nil)
	return v, err
}
