package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"

	"github.com/capybara-hq/capyrun/provider"
)

const (
	// mutateTimeout bounds one call that changes something on the engine. Such a
	// call does not follow the caller's context: the engine goes on with a
	// create whose client has left, so whoever leaves early cannot undo it.
	// An engine whose machine is overloaded has been seen to take a minute.
	mutateTimeout = 2 * time.Minute
	// answerTimeout is how long an engine may take to say that it is there: an
	// answer takes it a millisecond, also while it is busy. Two of them fit into
	// the second that a caller waits after a deadline.
	answerTimeout = 400 * time.Millisecond
)

var errSilent = errors.New("the engine does not answer")

// mutating returns the context for one call that changes the engine. After the
// end of the caller's context the call goes on for as long as the engine answers
// others: one that hangs is not waited for.
func (p *Provider) mutating(ctx context.Context) (context.Context, context.CancelFunc) {
	mctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mutateTimeout)
	mctx, giveUp := context.WithCancelCause(mctx)
	stop := context.AfterFunc(ctx, func() {
		for p.reachable(mctx) == nil && sleep(mctx, time.Second) == nil {
		}
		giveUp(errSilent)
	})
	return mctx, func() { stop(); giveUp(nil); cancel() }
}

// reachable returns an error, within answerTimeout, if the engine does not
// answer.
func (p *Provider) reachable(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, errSilent)
	defer cancel()
	_, err := p.api.Ping(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		err = errSilent
	}
	return p.fail(context.WithoutCancel(ctx), "connect", "", err)
}

// unsure reports whether a call that failed with err may have done its work: the
// connection broke before the engine's answer was there.
func unsure(err error) bool {
	return errors.Is(err, errSilent) || errors.Is(err, provider.ErrUnreachable)
}

// hijack makes a call that turns its connection into a stream. In the client
// library the context of such a call bounds the connecting alone, and not the
// wait for the answer, so an engine that hangs is left to itself: the stream is
// closed should it come after all.
func hijack(ctx context.Context, call func() (types.HijackedResponse, error)) (*stream, error) {
	type result struct {
		conn types.HijackedResponse
		err  error
	}
	done := make(chan result)
	go func() {
		conn, err := call()
		select {
		case done <- result{conn, err}:
		case <-ctx.Done():
			if err == nil {
				conn.Close()
			}
		}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, upgradeError(r.err)
		}
		return newStream(r.conn), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// upgradeError gives the error of a refused hijacking the kind that the client
// library drops.
func upgradeError(err error) error {
	for status, kind := range map[string]error{"404": errdefs.ErrNotFound, "409": errdefs.ErrConflict} {
		if strings.HasSuffix(err.Error(), "received "+status) {
			return fmt.Errorf("%w: %w", kind, err)
		}
	}
	return err
}
