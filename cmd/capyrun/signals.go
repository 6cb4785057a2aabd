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
	// waits says what the program still waits for, at the first signal.
	waits func() string
	// message writes a line; restore gives the terminal back.
	message func(string)
	restore func()
}

func watchSignals(parent context.Context, stderr io.Writer) *signals {
	s := &signals{stderr: stderr, c: make(chan os.Signal, 2), done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(parent)
	s.message = func(text string) { fmt.Fprintln(stderr, text) }
	signal.Notify(s.c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go s.watch()
	return s
}

// display makes messages go through a progress display for as long as it shows.
func (s *signals) display(message func(string), restore func(), waits func() string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.message, s.restore, s.waits = message, restore, waits
}

func (s *signals) watch() {
	defer close(s.done)
	sig, ok := <-s.c
	if !ok {
		return
	}
	first := signalError{sig.(syscall.Signal)}
	s.cancel(first)
	s.mu.Lock()
	what := "stopping"
	if s.waits != nil {
		what = s.waits()
	}
	s.message(fmt.Sprintf("%v: %s; press Ctrl-C again to leave at once", first, what))
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
