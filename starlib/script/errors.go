package script

import (
	"errors"

	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/provider"
)

// Kinds of failure beside those of package provider, as a script sees them in
// the kind of flow.attempt's error.
const (
	KindAssertion = "assertion failed"
	KindCommand   = "command failed"
	KindTimedOut  = "timed out"
	KindCanceled  = "canceled"
	KindLimit     = "limit reached"
	KindScript    = "script error" // anything that has no other kind
)

// Failure is an error that a script can tell from others and that has more to
// show than one line.
type Failure struct {
	Kind   string         // one of the constants above
	Msg    string         // complete, without the name of the builtin
	Detail string         // lines to show below the backtrace: output, a diff
	Hint   string         // what to do about it
	Value  starlark.Value // the error's result attribute: how a command ended
	Err    error          // the cause; may be nil
}

func (f *Failure) Error() string { return f.Msg }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// KindOf returns what kind of failure err is.
func KindOf(err error) string {
	var f *Failure
	var l Limit
	switch {
	case errors.As(err, &f) && f.Kind != "":
		return f.Kind
	case errors.As(err, &l):
		return KindLimit
	}
	switch k := provider.KindOf(err); k {
	case "":
		return KindScript
	case "deadline exceeded":
		return KindTimedOut
	default:
		return k
	}
}

// HintOf returns what the outermost failure that has a hint says.
func HintOf(err error) (hint string) {
	each(err, func(f *Failure) bool {
		hint = f.Hint
		return hint == ""
	})
	return hint
}

// DetailOf returns what the outermost failure with something to show shows.
func DetailOf(err error) (detail string) {
	each(err, func(f *Failure) bool {
		detail = f.Detail
		return detail == ""
	})
	return detail
}

// ValueOf returns what the outermost failure that has a value carries, or None.
func ValueOf(err error) starlark.Value {
	var v starlark.Value
	each(err, func(f *Failure) bool {
		v = f.Value
		return v == nil
	})
	if v == nil {
		return starlark.None
	}
	return v
}

// each calls fn with the failures in err's tree, outermost first, until it
// returns false.
func each(err error, fn func(*Failure) bool) bool {
	if f, ok := err.(*Failure); ok && !fn(f) {
		return false
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return each(e.Unwrap(), fn)
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if !each(inner, fn) {
				return false
			}
		}
	}
	return true
}

// Canceled reports whether the thread is being stopped, as opposed to having
// failed by itself.
func (t *Thread) Canceled() bool { return t.Ctx.Err() != nil }
