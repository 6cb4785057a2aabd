package docker

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"

	"github.com/capybara-hq/capyrun/agent"
)

// isPodman reports whether what answers is Podman's service, which speaks the
// Docker Engine's API.
func isPodman(version types.Version) bool {
	return slices.ContainsFunc(version.Components, func(c types.ComponentVersion) bool { return c.Name == "Podman Engine" })
}

// ownedBy are the options that give a volume of Podman's local driver its owner.
// Podman copies nothing into a volume before a container starts, and a volume
// without these it would give to the user of the first that does.
func ownedBy(id int) map[string]string {
	return map[string]string{"o": fmt.Sprintf("uid=%d,gid=%d", id, id)}
}

// fillVolume puts the agent into the volume that a container mounts.
func (p *Provider) fillVolume(ctx context.Context, id string, bin *agentBinary) error {
	r, w := io.Pipe()
	defer r.Close()
	go func() { w.CloseWithError(writeAgent(tar.NewWriter(w), path.Base(agent.Path), bin)) }()
	return p.api.CopyToContainer(ctx, id, agent.Mount, r, container.CopyToContainerOptions{})
}

// notAttached finds out why Podman refused to attach: it prepares the container
// before it does, and the client drops what it says where that fails. A start
// fails for the same reason and tells it.
func (s *Sandbox) notAttached(ctx context.Context, err error) error {
	if !s.p.podman || !strings.Contains(err.Error(), "unable to upgrade") {
		return err
	}
	if why := s.mutate(ctx, func(ctx context.Context) error {
		return s.p.api.ContainerStart(ctx, s.id, container.StartOptions{})
	}); why != nil {
		return why
	}
	return err
}

// stopping reports whether a container was not started because Podman has not
// done with its end.
func stopping(err error) bool { return strings.Contains(err.Error(), "container state improper") }

// podmanLacks says what is different under Podman 4.3.
const podmanLacks = "sandboxes work, but it reports full image names, and may refuse to suspend a sandbox that somebody uses meanwhile"
