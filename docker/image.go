package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/image"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
)

// ensureImage makes sure that the engine has the image and that it is for the
// engine's platform, pulling it as the configuration says. Of several creates
// that miss the same image, one pulls it.
func (p *Provider) ensureImage(ctx context.Context, sandbox, ref string) error {
	if p.cfg.Pull != PullAlways {
		if err := p.checkImage(ctx, sandbox, ref); !notFound(err) {
			return err
		}
		if p.cfg.Pull == PullNever {
			return &provider.Error{Op: "create", Sandbox: sandbox, Kind: provider.ErrImageNotFound, Err: fmt.Errorf("%q", ref),
				Hint: `the engine does not have it, and pull is "never"`}
		}
	}
	unlock, err := p.images.lock(ctx, ref)
	if err != nil {
		return p.fail(ctx, "create", sandbox, err)
	}
	defer unlock()
	if p.cfg.Pull != PullAlways {
		if err := p.checkImage(ctx, sandbox, ref); !notFound(err) {
			return err
		}
	}
	if err := p.pull(ctx, sandbox, ref); err != nil {
		return err
	}
	return p.checkImage(ctx, sandbox, ref)
}

// checkImage returns the engine's own not-found error where it lacks the image.
func (p *Provider) checkImage(ctx context.Context, sandbox, ref string) error {
	img, err := p.api.ImageInspect(ctx, ref)
	if notFound(err) {
		return err
	}
	if err != nil {
		return p.fail(ctx, "create", sandbox, err)
	}
	if img.Os != "" && img.Os != "linux" || img.Architecture != "" && !runsOn(img.Architecture, p.arch) {
		return &provider.Error{Op: "create", Sandbox: sandbox, Kind: provider.ErrImagePlatform,
			Err: fmt.Errorf("%q is for %s/%s, the engine runs linux/%s", ref, img.Os, img.Architecture, p.arch)}
	}
	return nil
}

// runsOn reports whether a kernel of an architecture runs programs of another
// without emulation.
func runsOn(image, kernel string) bool {
	return image == kernel || kernel == "amd64" && image == "386" || kernel == "arm64" && image == "arm"
}

// pull pulls an image; the progress is an event.
//
// Credentials that cannot be read are no error yet: a public image needs none,
// and what is broken may concern another registry. They are named where the
// registry then refuses.
func (p *Provider) pull(ctx context.Context, sandbox, ref string) (err error) {
	op := "pull " + ref
	domain, err := registryOf(ref)
	if err != nil {
		return &provider.Error{Op: op, Sandbox: sandbox, Kind: provider.ErrImageNotFound, Err: err, Hint: "the engine does not have it, and an image id cannot be pulled"}
	}
	ctx, span := event.Begin(ctx, event.Event{Kind: event.KindPull, Name: op, Sandbox: sandbox})
	defer func() { span.End(err, nil) }()
	auth, authErr := registryAuth(ctx, domain)
	if cause := canceled(ctx); cause != nil {
		return p.fail(ctx, op, sandbox, cause)
	}
	body, err := p.api.ImagePull(ctx, ref, image.PullOptions{RegistryAuth: auth})
	if err == nil {
		err = readMessages(body, func(m *imageMessage) { m.progress(ctx) })
		body.Close()
	}
	switch {
	case err == nil && authErr != nil:
		p.warnOnce(ctx, "pulled without credentials: "+authErr.Error())
		return nil
	case err == nil || canceled(ctx) != nil:
		return p.fail(ctx, op, sandbox, err)
	}
	if e := p.fail(ctx, op, sandbox, err); errors.Is(e, provider.ErrUnreachable) {
		return e
	}
	e := &provider.Error{Op: op, Sandbox: sandbox, Kind: provider.ErrPullFailed, Err: trimmed{err}}
	msg := err.Error()
	refused := refusedByRegistry.MatchString(msg)
	switch {
	case strings.Contains(msg, "no matching manifest"):
		e.Kind = provider.ErrImagePlatform
		return e
	case notFound(err), missingInRegistry.MatchString(msg):
		e.Kind = provider.ErrImageNotFound
	case !refused:
		e.Hint = "the engine does not have the image and could not get it from its registry"
	}
	switch {
	case authErr != nil:
		e.Err = fmt.Errorf("%w; without credentials the registry says: %w", authErr, trimmed{err})
	case refused && auth == "":
		e.Hint = "the registry wants credentials: `docker login " + domain + "`"
	case refused:
		e.Hint = "the registry did not take the credentials of the Docker configuration: `docker login " + domain + "` replaces them"
	}
	return e
}

// What registries answer through the engine, which hands on their words and a
// status that depends on how far it had come.
var (
	missingInRegistry = regexp.MustCompile(`manifest unknown|does not exist|name unknown`)
	refusedByRegistry = regexp.MustCompile(`(?i)unauthorized|no basic auth credentials|authentication required|\bdenied\b|may require 'docker login'`)
)

// checkReference refuses what cannot name an image.
func checkReference(ref string) error {
	if _, err := reference.ParseAnyReference(ref); err != nil {
		return &provider.InvalidError{Field: "image", Value: ref, Reason: "is not an image reference: " + err.Error()}
	}
	return nil
}

// registryOf returns the domain of the registry that an image comes from. An
// image's id has none.
func registryOf(ref string) (string, error) {
	any, err := reference.ParseAnyReference(ref)
	if err != nil {
		return "", err
	}
	named, ok := any.(reference.Named)
	if !ok {
		return "", fmt.Errorf("%q is an image id", ref)
	}
	return reference.Domain(named), nil
}

// imageMessage is one message of the stream with which the engine answers a
// pull or an import.
type imageMessage struct {
	ID       string `json:"id"`
	Status   string `json:"status"`
	Error    string `json:"error"`
	Progress struct {
		Current int64 `json:"current"`
		Total   int64 `json:"total"`
	} `json:"progressDetail"`
}

// progress tells the message to whoever watches.
func (m *imageMessage) progress(ctx context.Context) {
	text := m.Status
	if m.ID != "" {
		text = m.ID + ": " + text
	}
	if m.Progress.Total > 0 {
		text += fmt.Sprintf(" %d%%", 100*m.Progress.Current/m.Progress.Total)
	}
	event.Emit(ctx, event.Event{Type: event.Progress, Text: text})
}

// readMessages reads the stream of a pull or an import to its end. The engine
// answers 200 before it knows whether that works, so an error comes as a
// message.
func readMessages(body io.Reader, each func(*imageMessage)) error {
	dec := json.NewDecoder(body)
	for {
		var m imageMessage
		if err := dec.Decode(&m); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("the engine's messages: %w", err)
		}
		if m.Error != "" {
			return errors.New(m.Error)
		}
		each(&m)
	}
}
