package docker

import (
	"context"
	"fmt"
	"time"

	"github.com/capybara-hq/capyrun/provider"
)

const (
	// cleanupTimeout bounds the removal of what a failed create has made.
	cleanupTimeout = 60 * time.Second
	// settleTime is how long an engine that has come back may take to end what it
	// had begun for a client that is gone.
	settleTime = 5 * time.Second
)

// undo removes what a create that failed with cause has made. It runs on a
// context that outlives the cancelled one, and finds its parts by the label that
// no other create has: a call whose answer did not come may have done its work.
//
// Where the engine cannot be reached the error says that something may be left,
// and the removal goes on without the caller; so it does, without an error, where
// the engine may still be at work.
func (p *Provider) undo(ctx context.Context, pl *plan, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	err := p.reachable(ctx)
	if err == nil {
		err = p.removeInstance(ctx, pl)
	}
	if err != nil || unsure(cause) {
		p.removeLater(pl)
	}
	if err == nil {
		return nil
	}
	if unsure(err) {
		err = errSilent
	}
	return fmt.Errorf("parts of it may be left: they are removed once that is possible, or by `capyrun gc` after the end of this process: %w", err)
}

func (p *Provider) removeInstance(ctx context.Context, pl *plan) error {
	_, err := p.removeAll(ctx, provider.LabelName+"="+pl.spec.Name, provider.LabelInstance+"="+pl.instance)
	return p.fail(ctx, "remove", "", err)
}

// removeLater removes what is left of a failed create in the background, once
// the engine answers, and again until it has settled. When the provider is closed
// it makes a last attempt. What it has not removed is Sweep's.
func (p *Provider) removeLater(pl *plan) {
	p.failed.Store(pl.instance, struct{}{})
	p.inBackground(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		var back time.Time // when the engine answered
		for pause := 100 * time.Millisecond; ; pause = min(2*pause, time.Second) {
			closing := false
			select {
			case <-p.closing:
				closing = true
			case <-time.After(pause):
			}
			if p.reachable(ctx) == nil {
				if back.IsZero() {
					back = time.Now()
				}
				if p.removeInstance(ctx, pl) == nil && time.Since(back) > settleTime {
					return
				}
			}
			if closing || ctx.Err() != nil {
				return
			}
		}
	})
}
