//go:build linux

package server

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// commandNice is the niceness of commands. It decides between the agent and the
// commands of its own sandbox alone, since each sandbox is a scheduling group of
// its own: against a thousand busy processes of a fork bomb the agent would
// otherwise get a thousandth of the processor to end them with.
const commandNice = 19

// spawner is a thread on which processes are started. Niceness and the filter of
// [guardLimits] belong to a thread and are inherited from the one that forks. An
// unprivileged thread cannot take them back, so this one does nothing else.
type spawner chan func()

func newSpawner() spawner {
	s := make(spawner)
	go func() {
		runtime.LockOSThread()
		// Where it is not allowed the agent works as well, but for fork bombs.
		unix.Setpriority(unix.PRIO_PROCESS, 0, commandNice)
		guardLimits()
		for f := range s {
			f()
		}
	}()
	return s
}

// do runs f on the thread.
func (s spawner) do(f func()) {
	done := make(chan struct{})
	s <- func() {
		defer close(done)
		f()
	}
	<-done
}
