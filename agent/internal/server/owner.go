//go:build linux

package server

import (
	"sync"
	"time"
)

// owner decides when a sandbox ends for want of an owner: when no session has
// been there for the grace time.
type owner struct {
	grace time.Duration
	lost  chan struct{} // closed once

	mu       sync.Mutex
	sessions int
	timer    *time.Timer // runs while there is no session
}

func newOwner(grace time.Duration) *owner {
	o := &owner{grace: grace, lost: make(chan struct{})}
	o.timer = time.AfterFunc(grace, o.expire)
	return o
}

func (o *owner) enter() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sessions++
	o.timer.Stop()
}

func (o *owner) leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sessions--; o.sessions == 0 {
		o.timer.Reset(o.grace)
	}
}

func (o *owner) expire() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sessions > 0 {
		return // one came as the timer fired
	}
	select {
	case <-o.lost:
	default:
		close(o.lost)
	}
}
