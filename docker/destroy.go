package docker

import (
	"context"
	"slices"
	"time"

	"github.com/docker/docker/api/types/container"
	"golang.org/x/sync/errgroup"

	"github.com/capybara-hq/capyrun/provider"
)

// holdTimeout is how long a removal is tried again while the engine still
// holds the resource: it lets go of a container's volumes and networks a
// moment after the container. After a tenth of that it is asked anew who holds
// it.
const holdTimeout = 5 * time.Second

// Destroy implements [provider.Provider].
func (p *Provider) Destroy(ctx context.Context, name string) error {
	if err := provider.CheckName(name); err != nil {
		return err
	}
	return p.destroy(ctx, name, "")
}

// destroy removes all parts of the sandbox; with an instance, only those of
// that one create, whatever has its name by now.
func (p *Provider) destroy(ctx context.Context, name, instance string) error {
	labels := []string{provider.LabelName + "=" + name}
	if instance != "" {
		labels = append(labels, provider.LabelInstance+"="+instance)
	}
	found, err := p.removeAll(ctx, labels...)
	if err != nil {
		return p.fail(ctx, "destroy", name, err)
	}
	if len(found) == 0 {
		// Tells a stranger's container from none.
		if _, err := p.byName(ctx, "destroy", name); err != nil {
			return err
		}
		return &provider.Error{Op: "destroy", Sandbox: name, Kind: provider.ErrGone}
	}
	return nil
}

// removeAll removes everything of ours that has the labels and returns what
// that was. A container that somebody was still creating may come to hold a
// volume that was free a moment ago, so what is held is looked for again.
func (p *Provider) removeAll(ctx context.Context, labels ...string) (removed []part, err error) {
	for end := time.Now().Add(holdTimeout); ; {
		found, err := p.parts(ctx, labels...)
		if err != nil {
			return removed, err
		}
		for _, x := range found {
			if !slices.ContainsFunc(removed, func(r part) bool { return r.kind == x.kind && r.id == x.id }) {
				removed = append(removed, x)
			}
		}
		err = p.removeParts(ctx, found)
		if err == nil || !busy(err) || time.Now().After(end) {
			return removed, err
		}
	}
}

// removeParts removes containers first: they hold the rest.
func (p *Provider) removeParts(ctx context.Context, parts []part) error {
	for _, wave := range [][]partKind{{containerPart}, {networkPart, volumePart}} {
		var g errgroup.Group
		for _, x := range parts {
			for _, kind := range wave {
				if x.kind == kind {
					g.Go(func() error { return p.removePart(ctx, x) })
				}
			}
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	return nil
}

func (p *Provider) removePart(ctx context.Context, x part) error {
	switch x.kind {
	case containerPart:
		return p.removeContainer(ctx, x.id)
	case networkPart:
		return p.remove(ctx, func(ctx context.Context) error { return p.api.NetworkRemove(ctx, x.id) })
	default:
		return p.removeVolume(ctx, x.id)
	}
}

// removeContainer removes a container by force, with the anonymous volumes
// that the engine made because its image asks for them.
func (p *Provider) removeContainer(ctx context.Context, id string) error {
	return p.remove(ctx, func(ctx context.Context) error {
		return p.api.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	})
}

func (p *Provider) removeVolume(ctx context.Context, name string) error {
	return p.remove(ctx, func(ctx context.Context) error { return p.api.VolumeRemove(ctx, name, false) })
}

// remove calls until the resource is gone: a missing one is fine, and one that
// the engine still holds is tried again for a while.
func (p *Provider) remove(ctx context.Context, call func(context.Context) error) error {
	for end := time.Now().Add(holdTimeout / 10); ; {
		mctx, cancel := p.mutating(ctx)
		err := call(mctx)
		cancel()
		if err == nil || notFound(err) {
			return nil
		}
		if !busy(err) || time.Now().After(end) {
			return err
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}
