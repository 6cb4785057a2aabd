package starlib

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.starlark.net/resolve"
	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/starlib/script"
)

// Kind is why a run failed, as far as callers act differently on it.
type Kind string

const (
	// The workflow could not be run as asked.
	KindLoad   Kind = "cannot load"  // the file a module that it loads, or a name in that, is not there
	KindSyntax Kind = "syntax error" // or a name that does not exist
	KindParams Kind = "parameters"   // missing, unknown or of the wrong type

	// The workflow failed.
	KindScript    Kind = "script error"
	KindAssertion Kind = "assertion failed"
	KindCommand   Kind = "command failed" // or timed out, or was killed
	KindCleanup   Kind = "cleanup failed" // and the workflow itself succeeded

	// The workflow was stopped.
	KindLimit    Kind = "limit reached" // see [Limits]
	KindTimeout  Kind = "timed out"     // the deadline of the run's context
	KindCanceled Kind = "canceled"      // the run's context

	// KindEnvironment: the engine cannot be reached, or the image not be had.
	KindEnvironment Kind = "environment"
)

// Error is a run that failed.
type Error struct {
	Kind Kind
	// Reason is the kind as scripts see it in flow.attempt's error: finer than
	// Kind. Empty where the workflow could not be run as asked.
	Reason string
	// Msg says what went wrong. It may have several lines.
	Msg string
	// Backtrace leads from main, or the top level, to the point of failure,
	// through all files and threads. It may be empty.
	Backtrace []Frame
	// Detail are lines to show below the message: a command's last output, a
	// diff.
	Detail string
	// Hint says what to do about it. It may be empty.
	Hint string
	// Err is the cause. It matches what it stems from: context.Canceled, the
	// kinds of package provider, errors of embedders' builtins.
	Err error
	// Cleanup is what went wrong afterwards, in deferred calls and in the
	// destruction of sandboxes. It may be nil.
	Cleanup error
}

// Frame is a place in a script. Lines and columns count from 1; 0 is unknown.
type Frame struct {
	File   string
	Line   int
	Col    int // in characters
	Func   string
	Source string // the line's text, if it is known
}

func (f Frame) String() string {
	switch {
	case f.Line == 0:
		return f.File
	case f.Col == 0:
		return fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	return fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Col)
}

// Error is the place of failure and the message, without the backtrace.
func (e *Error) Error() string {
	msg := e.Msg
	if n := len(e.Backtrace); n > 0 {
		msg = e.Backtrace[n-1].String() + ": " + msg
	}
	if e.Cleanup != nil {
		msg += "\ncleanup: " + e.Cleanup.Error()
	}
	return msg
}

// Unwrap returns the cause.
func (e *Error) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.Err, e.Cleanup} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Render writes the whole error for a person: the backtrace, each place with its
// source line and a caret, then the message, the detail and the hint. color adds
// terminal colours.
func (e *Error) Render(w io.Writer, color bool) error {
	paint := func(code, s string) string {
		if !color {
			return s
		}
		return "\x1b[" + code + "m" + s + "\x1b[0m"
	}
	var b strings.Builder
	for _, f := range e.Backtrace {
		b.WriteString(paint("1", f.String()))
		if f.Func != "" {
			b.WriteString(": in " + f.Func)
		}
		b.WriteByte('\n')
		if line, caret := f.excerpt(); line != "" {
			b.WriteString("    " + line + "\n")
			if caret != "" {
				b.WriteString("    " + paint("31", caret) + "\n")
			}
		}
	}
	b.WriteString(paint("1;31", "error:") + " " + printable(e.Msg) + "\n")
	if e.Detail != "" {
		for line := range strings.SplitSeq(e.Detail, "\n") {
			b.WriteString("  " + printable(line) + "\n")
		}
	}
	if e.Hint != "" {
		b.WriteString(paint("36", "hint:") + " " + e.Hint + "\n")
	}
	if e.Cleanup != nil {
		b.WriteString(paint("1;31", "cleanup:") + " " + printable(e.Cleanup.Error()) + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printable replaces control characters: what a command printed must not drive
// the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 {
			return '\uFFFD'
		}
		return r
	}, s)
}

// maxExcerpt is the longest source line that is shown whole, in characters.
const maxExcerpt = 160

// excerpt returns the source line without its indentation, and a line with a
// caret below the column.
func (f Frame) excerpt() (line, caret string) {
	runes := []rune(strings.TrimRight(f.Source, " \t\r\n"))
	col := f.Col - 1
	skip := 0
	for skip < len(runes) && (runes[skip] == ' ' || runes[skip] == '\t') {
		skip++
	}
	if col > skip+maxExcerpt*3/4 {
		skip = col - maxExcerpt/2 // a long line: show what is around the column
	}
	runes, col = runes[skip:], col-skip
	if len(runes) > maxExcerpt {
		runes = runes[:maxExcerpt]
	}
	line = printable(string(runes))
	if f.Col == 0 || col < 0 || col > len(runes) {
		return line, ""
	}
	pad := strings.Map(func(r rune) rune {
		if r == '\t' {
			return '\t'
		}
		return ' '
	}, string(runes[:col]))
	return line, pad + "^"
}

// explain makes an [Error] of what a script, or a part of the run, returned.
func (x *execution) explain(err error) *Error {
	e := &Error{Msg: err.Error(), Err: err, Reason: script.KindOf(err), Detail: script.DetailOf(err), Hint: script.HintOf(err)}
	e.Kind = kindOf(err)
	if stop := (*stopped)(nil); errors.As(err, &stop) {
		e.Reason = string(e.Kind) // the context's cause may be of any kind
	}
	for _, f := range frames(err) {
		e.Backtrace = append(e.Backtrace, x.withSource(f))
	}
	if cycle := (*cycleError)(nil); errors.As(err, &cycle) {
		e.Msg = cycle.Error() // the modules on the way are in it
	}
	x.explainSyntax(e, err)
	if e.Hint == "" {
		e.Hint = hintForError(e)
	}
	switch e.Kind {
	case KindParams:
		e.Reason, e.Backtrace = "", nil // the mistake is not in the script
	case KindLoad, KindSyntax:
		e.Reason = ""
	}
	return e
}

func kindOf(err error) Kind {
	var stop *stopped
	if errors.As(err, &stop) {
		var limit script.Limit
		switch {
		case errors.As(stop.cause, &limit):
			return KindLimit
		case errors.Is(stop.cause, context.DeadlineExceeded):
			return KindTimeout
		}
		return KindCanceled
	}
	var (
		params  *paramsError
		load    *loadError
		syn     syntax.Error
		names   resolve.ErrorList
		limit   script.Limit
		failure *script.Failure
		pkind   provider.Kind
	)
	switch {
	case errors.As(err, &params):
		return KindParams
	case errors.As(err, &load), lacksName(err):
		return KindLoad
	case errors.As(err, &syn), errors.As(err, &names):
		return KindSyntax
	case errors.As(err, &limit):
		return KindLimit
	case errors.As(err, &failure) && failure.Kind == script.KindAssertion:
		return KindAssertion
	case failure != nil && failure.Kind == script.KindCommand, failure != nil && failure.Value != nil:
		return KindCommand
	case errors.As(err, &pkind):
		switch pkind {
		case provider.ErrUnreachable, provider.ErrImageNotFound, provider.ErrImagePlatform, provider.ErrPullFailed:
			return KindEnvironment
		}
	}
	return KindScript
}

// frames returns the places on the way to the failure, the outermost first.
// Errors of nested calls on one thread carry the whole stack, so that each
// contains the one before; those of another thread carry on where the stack of
// the thread that started it ends.
func frames(err error) []Frame {
	var all, last []Frame
	walk(err, func(err error) bool {
		eval, ok := err.(*starlark.EvalError)
		if !ok {
			return true
		}
		var stack []Frame
		for _, call := range eval.CallStack {
			if call.Pos.Filename() != "<builtin>" {
				stack = append(stack, Frame{File: call.Pos.Filename(), Line: int(call.Pos.Line), Col: int(call.Pos.Col), Func: call.Name})
			}
		}
		if !hasPrefix(stack, last) {
			all = append(all, last...)
		}
		last = stack
		return true
	})
	return append(all, last...)
}

func hasPrefix(stack, prefix []Frame) bool {
	if len(stack) < len(prefix) {
		return false
	}
	for i, f := range prefix {
		if stack[i] != f {
			return false
		}
	}
	return true
}

// walk calls fn with err and what it wraps, outermost first. It follows the first
// of several wrapped errors that has a backtrace, until fn returns false.
func walk(err error, fn func(error) bool) {
	for err != nil && fn(err) {
		switch e := err.(type) {
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			err = nil
			for _, inner := range e.Unwrap() {
				var eval *starlark.EvalError
				if errors.As(inner, &eval) {
					err = inner
					break
				}
			}
		default:
			return
		}
	}
}

func (x *execution) withSource(f Frame) Frame {
	lines := x.loader.sources[f.File]
	for range f.Line - 1 {
		_, lines, _ = strings.Cut(lines, "\n")
	}
	f.Source, _, _ = strings.Cut(lines, "\n")
	return f
}

// explainSyntax replaces the message of an error that was found before the file
// ran: the position becomes a frame, and a hint says what to write instead.
func (x *execution) explainSyntax(e *Error, err error) {
	if e.Kind != KindSyntax {
		return
	}
	at := func(pos syntax.Position) Frame {
		return x.withSource(Frame{File: pos.Filename(), Line: int(pos.Line), Col: int(pos.Col)})
	}
	var syn syntax.Error
	var names resolve.ErrorList
	switch {
	case errors.As(err, &syn):
		f := at(syn.Pos)
		e.Msg, e.Backtrace = syn.Msg, append(e.Backtrace, f)
		e.Hint = hintForSyntax(syn.Msg, f)
	case errors.As(err, &names):
		f := at(names[0].Pos)
		e.Msg, e.Backtrace = names[0].Msg, append(e.Backtrace, f)
		e.Hint = hintForName(names[0].Msg)
		var more []string
		for _, other := range names[1:] {
			more = append(more, other.Error())
		}
		e.Detail = strings.Join(more, "\n")
	}
}
