package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/capybara-hq/capyrun/provider"
)

// fail turns an error of the Docker client into one of the provider's: it adds
// what was being done, and the kind where the engine's answer tells it.
func (p *Provider) fail(ctx context.Context, op, sandbox string, err error) error {
	if err == nil {
		return nil
	}
	if cause := canceled(ctx); cause != nil {
		if errors.Is(err, errSilent) {
			cause = fmt.Errorf("%w: %w", cause, errSilent)
		}
		return &provider.Error{Op: op, Sandbox: sandbox, Err: cause}
	}
	var known *provider.Error
	if errors.As(err, &known) {
		return err
	}
	var invalid *provider.InvalidError
	if errors.As(err, &invalid) { // ours, not the engine's
		return &provider.Error{Op: op, Sandbox: sandbox, Err: err}
	}
	e := &provider.Error{Op: op, Sandbox: sandbox, Err: trimmed{err}}
	switch {
	case insecure(err):
		e.Kind = provider.ErrUnreachable
		e.Hint = securityHint
	case errors.Is(err, errSilent):
		e.Kind, e.Err = provider.ErrUnreachable, errSilent
		e.Hint = "the engine at " + p.cfg.Endpoint + " takes connections and says nothing: it hangs, or its machine does"
	case client.IsErrConnectionFailed(err), broken(err):
		e.Kind = provider.ErrUnreachable
		e.Hint = "is the engine at " + p.cfg.Endpoint + " running, and may this user connect? `capyrun doctor` tells more"
		if strings.HasPrefix(p.cfg.Endpoint, "tcp:") {
			e.Hint = "does an engine listen at " + p.cfg.Endpoint + ", and does it want TLS (DOCKER_TLS_VERIFY=1, DOCKER_CERT_PATH)? `capyrun doctor` tells more"
		} else if unused := unusedContext(p.cfg.Endpoint); unused != "" {
			e.Hint = "the docker command uses its context " + unused + ", capyrun does not: set DOCKER_HOST or the endpoint to that context's"
		}
	case errdefs.IsUnavailable(err), strings.Contains(err.Error(), "transport is closing"):
		e.Kind = provider.ErrUnreachable
		e.Hint = "the engine at " + p.cfg.Endpoint + " is stopping"
	case errors.Is(err, context.DeadlineExceeded):
		e.Kind = provider.ErrUnreachable
		e.Hint = "the engine at " + p.cfg.Endpoint + " did not answer in time"
	default:
		e.Kind, e.Hint = refusal(err.Error())
	}
	return e
}

// broken reports whether a connection broke, rather than the engine answered.
func broken(err error) bool {
	return errors.As(err, new(*net.OpError)) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

var refusals = []struct {
	pattern *regexp.Regexp
	kind    provider.Kind
	hint    string
}{
	{regexp.MustCompile(`(?i)range of cpus`), provider.ErrRefused, "the engine's host has fewer processors"},
	{regexp.MustCompile(`(?i)no space left`), provider.ErrNoSpace, "the engine's disk is full"},
}

// refusal reads what an engine answered.
func refusal(msg string) (provider.Kind, string) {
	for _, r := range refusals {
		if r.pattern.MatchString(msg) {
			return r.kind, r.hint
		}
	}
	return provider.ErrRefused, ""
}

// trimmed takes the client's own prefix off an error's text: every message
// would begin with it.
type trimmed struct{ err error }

func (t trimmed) Error() string {
	return strings.TrimSpace(strings.TrimPrefix(t.err.Error(), "Error response from daemon: "))
}

func (t trimmed) Unwrap() error { return t.err }

// notFound reports whether the engine says that the object does not exist.
// Podman says so with status 500 of what goes while it looks.
func notFound(err error) bool {
	return errdefs.IsNotFound(err) || err != nil && wentMeanwhile.MatchString(err.Error())
}

var wentMeanwhile = regexp.MustCompile(`: no such (container|volume)$`)

// busy reports whether the engine refused because of what it is doing or
// holding now, so that the same call may succeed a moment later.
func busy(err error) bool {
	return errdefs.IsConflict(err) || strings.Contains(err.Error(), "has active endpoints")
}
