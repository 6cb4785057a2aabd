package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// signalError is the cause of a context that a signal ended.
type signalError struct{ signal syscall.Signal }

func (e signalError) Error() string {
	switch e.signal {
	case syscall.SIGINT:
		return "interrupted"
	case syscall.SIGTERM:
		return "terminated"
	}
	return e.signal.String()
}

// exitCode is the shell's convention.
func (e signalError) exitCode() int { return 128 + int(e.signal) }

// signals ends a context at the first signal that asks the program to end, and
// the program itself at the second.
type signals struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	stderr io.Writer
	c      chan os.Signal
	done   chan struct{}

	mu sync.Mutex
	// waits is what the program waits for before it ends.
	waits     string
	signalled bool
	// message writes a line; restore gives the terminal back.
	message func(string)
	restore func()
}

func watchSignals(parent context.Context, stderr io.Writer) *signals {
	s := &signals{stderr: stderr, c: make(chan os.Signal, 2), done: make(chan struct{}), waits: "stopping"}
	s.ctx, s.cancel = context.WithCancelCause(parent)
	s.message = func(text string) { fmt.Fprintln(stderr, text) }
	signal.Notify(s.c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go s.watch()
	return s
}

// display makes messages go through a progress display for as long as it shows.
func (s *signals) display(message func(string), restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.message, s.restore = message, restore
}

// waitsFor notes what the program waits for, and tells it after a signal.
func (s *signals) waitsFor(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = what
	if s.signalled {
		s.message(what)
	}
}

func (s *signals) watch() {
	defer close(s.done)
	sig, ok := <-s.c
	if !ok {
		return
	}
	first := signalError{sig.(syscall.Signal)}
	s.mu.Lock() // what follows the cancellation is told after it
	s.cancel(first)
	s.signalled = true
	s.message(fmt.Sprintf("%v: %s; press Ctrl-C again to leave at once", first, s.waits))
	s.mu.Unlock()
	if sig, ok = <-s.c; ok {
		s.leave(signalError{sig.(syscall.Signal)})
	}
}

// leave ends the program without waiting for anything.
func (s *signals) leave(why signalError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.restore != nil {
		restored := make(chan struct{})
		go func() {
			s.restore()
			close(restored)
		}()
		// A terminal that is stopped takes nothing.
		select {
		case <-restored:
		case <-time.After(200 * time.Millisecond):
		}
	}
	fmt.Fprintln(s.stderr, "left at once: sandboxes end by themselves within a minute, and `capyrun gc` removes what is left of them")
	os.Exit(why.exitCode())
}

func (s *signals) stop() {
	signal.Stop(s.c)
	close(s.c)
	<-s.done
	s.cancel(nil)
}
