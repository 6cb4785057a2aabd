//go:build linux

package server

import (
	"sync"
	"syscall"
	"time"
)

// oomSpan is a part of the count of processes that were killed for want of
// memory: those after the number from, up to the number to.
type oomSpan struct{ from, to int64 }

func (s oomSpan) overlap(o oomSpan) int64 {
	return max(0, min(s.to, o.to)-max(s.from, o.from))
}

// oomVictims knows to whom recent kills went. The kernel counts them for the
// whole sandbox, and only a parent learns how its child ended, so this is what
// can be told: a command whose main process was killed, or whose shell reports
// that of its last child, lost one of those that were counted while it ran.
type oomVictims struct {
	mu    sync.Mutex
	spans []oomSpan // oldest first
}

// maxVictims bounds what is remembered.
const maxVictims = 64

func (v *oomVictims) add(s oomSpan) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.spans = append(v.spans, s)
	v.spans = v.spans[max(0, len(v.spans)-maxVictims):]
}

// explain reports whether all kills of s may have gone to the victims.
func (v *oomVictims) explain(s oomSpan) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := int64(0)
	for _, o := range v.spans {
		n += s.overlap(o)
	}
	return n >= s.to-s.from
}

// noteVictim enters a command that has ended as a victim if it looks like one.
func (cs *commands) noteVictim(c *command) {
	const shellReportsKill = 128 + int(syscall.SIGKILL)
	shot := c.status.Signaled() && c.status.Signal() == syscall.SIGKILL || c.status.ExitStatus() == shellReportsKill
	if !shot || c.killed.Load() {
		return
	}
	if s := (oomSpan{c.oomBefore, cs.oomKills.read()}); s.to > s.from {
		c.victim = true
		cs.oomVictims.add(s)
	}
}

// blamePatience is how long other commands have to turn out to be the victims.
// The kernel counts a kill before the process has ended, and one with much
// memory takes its time.
const blamePatience = 250 * time.Millisecond

// outOfMemory reports whether a command that has failed did so for want of
// memory, as far as that can be told.
func (cs *commands) outOfMemory(c *command) bool {
	if c.victim {
		return true
	}
	// It may have failed since some descendant was killed: so it has if nobody
	// else was.
	s := oomSpan{c.oomBefore, cs.oomKills.read()}
	for end := time.Now().Add(blamePatience); s.to > s.from; time.Sleep(5 * time.Millisecond) {
		if cs.oomVictims.explain(s) {
			return false
		}
		if time.Now().After(end) || len(cs.list(func(*command) bool { return true })) == 0 {
			return true
		}
	}
	return false
}
