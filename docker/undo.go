package docker

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// undo collects what must be removed again if a create does not succeed. A
// function is added the moment that something exists. It is safe for use by
// several goroutines.
type undo struct {
	mu  sync.Mutex
	fns []func(context.Context) error
}

func (u *undo) add(fn func(context.Context) error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.fns = append(u.fns, fn)
}

// release forgets everything: the create has succeeded.
func (u *undo) release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.fns = nil
}

// run undoes in reverse order. It runs on a context that outlives the
// cancelled one.
func (u *undo) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	u.mu.Lock()
	fns := u.fns
	u.fns = nil
	u.mu.Unlock()
	var errs []error
	for _, fn := range slices.Backward(fns) {
		errs = append(errs, fn(ctx))
	}
	return errors.Join(errs...)
}
