package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/report"
	"github.com/capybara-hq/capyrun/starlib"
)

// Exit codes, see the output contract in README.md.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitEnvironment = 3
	exitTimedOut    = 124
	exitNotStarted  = 127 // exec: as env, timeout and every shell have it
)

// exitStatus is an exit code without anything to say.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// timeoutError is the cause of a run's context at the end of --timeout.
type timeoutError struct{ msg string }

func (e timeoutError) Error() string { return e.msg }
func (e timeoutError) Unwrap() error { return context.DeadlineExceeded }

// nameGone says of a name that was given on the command line that it is no sandbox's.
func nameGone(name string, err error) error {
	var gone *provider.Error
	if errors.As(err, &gone) && gone.Kind == provider.ErrGone && gone.Err == nil {
		return &goneError{name, err}
	}
	return err
}

type goneError struct {
	name string
	err  error
}

func (e *goneError) Error() string { return "there is no sandbox " + e.name }
func (e *goneError) Unwrap() error { return e.err }

// several is more than one failure. The first decides the exit code.
type several []error

func (s several) Error() string   { return errors.Join(s...).Error() }
func (s several) Unwrap() []error { return s }

// join makes one error of those that are not nil, nil where there is none.
func join(errs ...error) error {
	var s several
	for _, err := range errs {
		if more, ok := err.(several); ok {
			s = append(s, more...)
		} else if err != nil {
			s = append(s, err)
		}
	}
	switch len(s) {
	case 0:
		return nil
	case 1:
		return s[0]
	}
	return s
}

// finish tells of an error and returns the exit code.
func (p *program) finish(err error) int {
	if err == nil {
		err = p.stdout.failure()
	}
	if err == nil {
		return 0
	}
	all, ok := err.(several)
	if !ok {
		all = several{err}
	}
	for _, err := range all {
		p.tell(err)
	}
	return exitCode(p.ctx, all[0])
}

// tell writes an error to stderr.
func (p *program) tell(err error) {
	var status exitStatus
	var usage *usageError
	var script *starlib.Error
	switch {
	case errors.As(err, &status):
	case errors.As(err, &script):
		script.Render(p.stderr, p.color())
	case errors.As(err, &usage):
		command := "capyrun"
		if usage.command != "" && usage.command != command {
			command += " " + usage.command
		}
		fmt.Fprintf(p.stderr, "%s: %v\nRun '%s --help' for its usage.\n", command, report.Clean(usage.Error()), command)
	default:
		fmt.Fprintf(p.stderr, "capyrun: %v\n", report.Clean(err.Error()))
	}
}

// exitCode grades an error. ctx is the program's: why it ended counts for more
// than what broke because of it.
func exitCode(ctx context.Context, err error) int {
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	if ctx != nil {
		var sig signalError
		if errors.As(context.Cause(ctx), &sig) {
			return sig.exitCode()
		}
	}
	var config *configError // also where a script found out
	var script *starlib.Error
	switch {
	case errors.As(err, &config):
		return exitUsage
	case errors.As(err, &script):
		return scriptExitCode(script)
	}
	return ownExitCode(err)
}

// scriptExitCode grades a run that failed.
func scriptExitCode(err *starlib.Error) int {
	switch err.Kind {
	case starlib.KindLoad, starlib.KindSyntax, starlib.KindParams:
		return exitUsage
	case starlib.KindEnvironment:
		return exitEnvironment
	case starlib.KindTimeout:
		return exitTimedOut
	}
	return exitFailed
}

// ownExitCode grades an error of a command line, as opposed to one of a script.
func ownExitCode(err error) int {
	var usage *usageError
	var write *writeError
	switch {
	case errors.As(err, &usage), errors.Is(err, provider.ErrInvalid), errors.Is(err, provider.ErrGone),
		errors.Is(err, provider.ErrExists), errors.Is(err, provider.ErrNotOurs):
		return exitUsage
	case errors.Is(err, provider.ErrNotStarted):
		return exitNotStarted
	case errors.As(err, &write), isEnvironment(err):
		return exitEnvironment
	case errors.Is(err, context.DeadlineExceeded):
		return exitTimedOut
	}
	return exitFailed
}

func isEnvironment(err error) bool {
	for _, kind := range []provider.Kind{
		provider.ErrUnreachable, provider.ErrRefused, provider.ErrLimit, provider.ErrUnsupported, provider.ErrSessionLost,
		provider.ErrImageNotFound, provider.ErrImagePlatform, provider.ErrPullFailed,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}
