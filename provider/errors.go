package provider

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// Kind is a way of failing that callers act on. It is itself an error, so
// errors.Is(err, provider.ErrExists) matches it.
type Kind string

func (k Kind) Error() string { return string(k) }

const (
	ErrInvalid       Kind = "invalid argument"      // see [InvalidError]
	ErrExists        Kind = "already exists"        // a sandbox of ours has the name
	ErrNotOurs       Kind = "not owned by us"       // a stranger has the name
	ErrGone          Kind = "gone"                  // no such sandbox or process
	ErrImageNotFound Kind = "image not found"       // neither on the engine nor in its registry
	ErrImagePlatform Kind = "wrong image platform"  // the image is for another kind of machine
	ErrPullFailed    Kind = "image pull failed"     // the registry answered, but not with the image
	ErrUnreachable   Kind = "engine unreachable"    // nothing answers at the endpoint
	ErrRefused       Kind = "refused by the engine" // the engine answered with an error
	ErrLimit         Kind = "limit not enforceable" // the engine cannot hold a limit that was asked for
	ErrNotStarted    Kind = "command not started"   // no process ran
	ErrSessionLost   Kind = "session lost"          // the connection to the sandbox broke during the operation
	ErrIsDirectory   Kind = "is a directory"
	ErrNotDirectory  Kind = "not a directory"
	ErrNoSpace       Kind = "no space left" // /workspace, /tmp or the engine's disk is full
	ErrUnsupported   Kind = "not supported" // the other side does not know the operation
)

// KindOf returns the kind of err: one of the constants above, or one of the
// words "not found", "file exists", "permission denied", "connection refused",
// "canceled" and "deadline exceeded" for the standard library's errors. It is
// empty for others.
func KindOf(err error) string {
	var k Kind
	switch {
	case err == nil:
		return ""
	case errors.As(err, &k):
		return string(k)
	case errors.Is(err, fs.ErrNotExist):
		return "not found"
	case errors.Is(err, fs.ErrExist):
		return "file exists"
	case errors.Is(err, fs.ErrPermission):
		return "permission denied"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline exceeded"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return ""
}

// Error is a failed operation. Its message says what was being done to which
// sandbox, why it failed and, where Hint is set, what to do about it.
type Error struct {
	Op      string // what was being done: "create", "exec", "read /etc/x"; shortened in the message
	Sandbox string // its name; empty where none is concerned
	Kind    Kind   // empty: that of Err
	Err     error  // the cause; may be nil
	Hint    string // how to mend it; may be empty
}

func (e *Error) Error() string {
	op := shortOp(e.Op)
	var parts []string
	switch {
	case e.Op != "" && e.Sandbox != "":
		parts = append(parts, fmt.Sprintf("sandbox %s: %s", e.Sandbox, op))
	case e.Sandbox != "":
		parts = append(parts, "sandbox "+e.Sandbox)
	case e.Op != "":
		parts = append(parts, op)
	}
	if e.Kind != "" && (e.Err == nil || !errors.Is(e.Err, e.Kind)) {
		parts = append(parts, string(e.Kind))
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	msg := strings.Join(parts, ": ")
	if e.Hint != "" {
		msg += " (" + e.Hint + ")"
	}
	return msg
}

// shortOp cuts what is between the ends of an operation that names a long path.
func shortOp(op string) string {
	const begin, end = 100, 80
	if r := []rune(op); len(r) > begin+end {
		return string(r[:begin]) + "..." + string(r[len(r)-end:])
	}
	return op
}

// Unwrap makes both the kind and the cause match.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.Kind != "" {
		errs = append(errs, e.Kind)
	}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}

// InvalidError is an input that is refused before anything is done. It matches
// [ErrInvalid].
type InvalidError struct {
	Field  string // as a script or configuration spells it
	Value  string // what was given; shortened in the message
	Reason string // what is accepted
}

func (e *InvalidError) Error() string {
	value := e.Value
	if r := []rune(value); len(r) > 80 {
		value = string(r[:80]) + "..."
	}
	return fmt.Sprintf("%s %q: %s", e.Field, value, e.Reason)
}

// Unwrap makes it match [ErrInvalid].
func (e *InvalidError) Unwrap() error { return ErrInvalid }
