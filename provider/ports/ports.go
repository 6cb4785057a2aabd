// Package ports is what can be done with a server inside a sandbox: wait until
// it listens, ask it by HTTP, give it an address on this host. Everything goes
// through [provider.Sandbox.Dial], so that it works with every provider and
// needs no network in the sandbox.
package ports

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/capybara-hq/capyrun/provider"
)

// Sandbox is the part of [provider.Sandbox] that is needed here.
type Sandbox interface {
	Name() string
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// Check reports why a number cannot be a port, as a [*provider.InvalidError].
func Check(port int) error {
	if port < 1 || port > 65535 {
		return &provider.InvalidError{Field: "port", Value: strconv.Itoa(port), Reason: "must be from 1 to 65535"}
	}
	return nil
}

// Dial connects to the TCP port on the sandbox's loopback. Where no server
// listens the error says so and matches [syscall.ECONNREFUSED].
func Dial(ctx context.Context, sb Sandbox, port int) (net.Conn, error) {
	if err := Check(port); err != nil {
		return nil, err
	}
	conn, err := sb.Dial(ctx, "tcp", ":"+strconv.Itoa(port))
	if errors.Is(err, syscall.ECONNREFUSED) {
		err = &provider.Error{Sandbox: sb.Name(), Err: noServer{port}}
	}
	return conn, err
}

// noServer says of a refused connection what it means.
type noServer struct{ port int }

func (e noServer) Error() string { return fmt.Sprintf("no server listens on port %d", e.port) }
func (noServer) Unwrap() error   { return syscall.ECONNREFUSED }

// How often [Wait] tries: a server that starts quickly is found quickly, one
// that takes long is not bothered much.
const (
	firstDelay = 10 * time.Millisecond
	maxDelay   = 250 * time.Millisecond
)

// Wait returns when a server in the sandbox accepts connections on the port.
// When ctx ends before, the error wraps its cause and says how the last attempt
// failed. What no waiting would mend, such as a sandbox that is gone, ends it at
// once.
func Wait(ctx context.Context, sb Sandbox, port int) error {
	if err := Check(port); err != nil {
		return err
	}
	var last error
	for delay := firstDelay; ; delay = min(delay*3/2, maxDelay) {
		conn, err := Dial(ctx, sb, port)
		if err == nil {
			return conn.Close()
		}
		var kind provider.Kind
		if errors.As(err, &kind) && ctx.Err() == nil {
			return err
		}
		// An attempt that the deadline cut short says nothing about the server.
		timeout, isNet := errors.AsType[net.Error](err)
		if ctx.Err() == nil && !(isNet && timeout.Timeout()) {
			last = err
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			cause := context.Cause(ctx)
			if last == nil {
				return &provider.Error{Op: fmt.Sprintf("wait for port %d", port), Sandbox: sb.Name(), Err: cause}
			}
			return fmt.Errorf("%w: %w", last, cause)
		}
	}
}

// hintTime bounds the question for what has ended.
const hintTime = 2 * time.Second

// EndedHint names the background processes of the sandbox that have ended, for
// a person who wonders why no server listens. It is empty where there are none.
func EndedHint(ctx context.Context, sb provider.Sandbox) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hintTime)
	defer cancel()
	procs, err := sb.Processes(ctx)
	if err != nil {
		return "" // it is only a hint
	}
	var ended []string
	for _, p := range slices.Backward(procs) {
		if !p.Background || p.Running {
			continue
		}
		how := fmt.Sprintf("exit code %d", p.ExitCode)
		if p.Signal != "" {
			how = p.Signal
		}
		command, _, _ := strings.Cut(p.Command, "\n")
		if r := []rune(command); len(r) > 60 {
			command = string(r[:60]) + "..."
		}
		ended = append(ended, fmt.Sprintf("process %s (%s) has ended with %s", p.ID, command, how))
		if len(ended) == 3 {
			break
		}
	}
	return strings.Join(ended, "; ")
}
