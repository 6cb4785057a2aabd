package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
)

// broken returns why the client is dead, where an operation has seen err.
func (c *client) broken(err error) error {
	if errors.Is(err, wire.ErrGarbled) {
		c.fail(err)
	}
	if !c.ended() {
		// The agent has closed a stream in the middle of an operation, which it
		// does for no reason.
		c.fail(fmt.Errorf("%w: an operation's stream ended: %w", wire.ErrGarbled, err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// lostError is a client that broke in the middle of an operation or, where c is
// nil, a connection that did not become one.
type lostError struct {
	c     *client
	cause error
}

func (e *lostError) Error() string { return e.cause.Error() }
func (e *lostError) Unwrap() error { return e.cause }

// unreachableError is why an operation was given up without waiting for the
// agent. There is nobody to explain it.
type unreachableError struct{ error }

func (e *unreachableError) Unwrap() error { return e.error }

// explain asks f why a connection broke: once for each client, so that everybody
// who has lost it waits for the same answer.
func (e *lostError) explain(ctx context.Context, f func(context.Context, error) error) error {
	if f == nil || e.cause == errClosed || errors.As(e.cause, new(*unreachableError)) {
		return e.cause
	}
	ask := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), explainBound)
		defer cancel()
		if why := f(ctx, e.cause); why != nil {
			return why
		}
		return e.cause
	}
	if e.c == nil {
		return ask()
	}
	e.c.explained.Do(func() { e.c.explanation = ask() })
	return e.c.explanation
}

const explainBound = 5 * time.Second
