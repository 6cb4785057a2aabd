package docker

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/volume"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/provider"
)

// agentStore holds what puts the agent into sandboxes: on the engine, for each
// version of the binary,
//
//   - an image of the agent and an empty /workspace owned by uid 1000,
//   - a volume that the engine has filled from that image, and
//   - a container, never started, that mounts the volume. That it exists says
//     that the volume is filled, since the engine fills a volume before create
//     returns; it also keeps the volume and the image from being pruned.
//
// All three are called capyrun-agent-<hash of the binary>.
type agentStore struct {
	lock   keyedLock
	mu     sync.Mutex
	binary *agentBinary // nil until it is found
	ready  *agentImage  // nil until the engine is known to have it
}

type agentBinary struct {
	path string
	size int64
	name string // of the volume and the container
}

// agentImage is what creates need of the store.
type agentImage struct {
	volume string
	image  string // its id: a tag can be taken away
}

func (s *agentStore) get() *agentImage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

func (s *agentStore) set(ready *agentImage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = ready
}

// ensureAgent makes sure that the engine has the agent's volume and image.
// After a start that failed because it has not (somebody pruned), verify looks
// at the volume's content too.
func (p *Provider) ensureAgent(ctx context.Context, verify bool) (*agentImage, error) {
	if ready := p.agent.get(); ready != nil && !verify {
		return ready, nil
	}
	unlock, err := p.agent.lock.lock(ctx, "")
	if err != nil {
		return nil, p.fail(ctx, "install the agent", "", err)
	}
	defer unlock()
	if ready := p.agent.get(); ready != nil && !verify {
		return ready, nil
	}
	ready, err := p.installAgent(ctx, verify)
	if err != nil {
		return nil, p.fail(ctx, "install the agent", "", err)
	}
	p.agent.set(ready)
	return ready, nil
}

func (p *Provider) installAgent(ctx context.Context, verify bool) (*agentImage, error) {
	bin, err := p.agentBinary()
	if err != nil {
		return nil, err
	}
	marker, err := p.agentMarker(ctx, bin)
	if notFound(err) {
		verify = true
		marker, err = p.createAgentMarker(ctx, bin)
	}
	if err != nil {
		return nil, err
	}
	if verify && !p.agentComplete(ctx, marker.ID, bin) {
		// A fill that the engine's own end has cut short left part of the file,
		// and a volume that is not empty is not filled again.
		if err := p.removeAgent(ctx, marker.ID, bin.name); err != nil {
			return nil, err
		}
		if marker, err = p.createAgentMarker(ctx, bin); err != nil {
			return nil, err
		}
		if !p.agentComplete(ctx, marker.ID, bin) {
			return nil, fmt.Errorf("the engine did not fill the volume %s", bin.name)
		}
	}
	return &agentImage{volume: bin.name, image: marker.Image}, nil
}

// agentBinary finds the agent for the engine's platform and names its version.
func (p *Provider) agentBinary() (*agentBinary, error) {
	p.agent.mu.Lock()
	defer p.agent.mu.Unlock()
	if p.agent.binary != nil {
		return p.agent.binary, nil
	}
	path, err := agent.FindBinary(p.cfg.AgentBinary, "linux", p.arch)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	size, err := io.Copy(h, f)
	if err != nil {
		return nil, err
	}
	p.agent.binary = &agentBinary{path: path, size: size, name: provider.AgentPrefix + hex.EncodeToString(h.Sum(nil)[:8])}
	return p.agent.binary, nil
}

// agentMarker inspects the container that says that the volume is filled.
func (p *Provider) agentMarker(ctx context.Context, bin *agentBinary) (container.InspectResponse, error) {
	c, err := p.api.ContainerInspect(ctx, bin.name)
	if err == nil && c.Config.Labels[provider.LabelRole] != provider.RoleAgent {
		err = &provider.Error{Kind: provider.ErrNotOurs, Err: fmt.Errorf("container %s", bin.name)}
	}
	return c, err
}

// createAgentMarker fills the volume. Of several runners that do so at once,
// the engine lets one create the container; the others wait for it.
func (p *Provider) createAgentMarker(ctx context.Context, bin *agentBinary) (container.InspectResponse, error) {
	fail := func(err error) (container.InspectResponse, error) { return container.InspectResponse{}, err }
	img, err := p.agentImageID(ctx, bin)
	if err != nil {
		return fail(err)
	}
	labels := p.commonLabels(provider.RoleAgent)
	mctx, cancel := p.mutating(ctx)
	defer cancel()
	o := volume.CreateOptions{Name: bin.name, Labels: labels}
	if p.podman {
		o.DriverOpts = ownedBy(0)
	}
	vol, err := p.api.VolumeCreate(mctx, o)
	if err != nil {
		return fail(err)
	}
	if vol.Labels[provider.LabelRole] != provider.RoleAgent {
		return fail(&provider.Error{Kind: provider.ErrNotOurs, Err: fmt.Errorf("volume %s", bin.name)})
	}
	_, err = p.api.ContainerCreate(mctx,
		&container.Config{Image: img, Cmd: []string{agent.Path}, Labels: labels},
		&container.HostConfig{NetworkMode: "none", LogConfig: noLog, Mounts: []mount.Mount{
			{Type: mount.TypeVolume, Source: bin.name, Target: agent.Mount, VolumeOptions: &mount.VolumeOptions{Labels: labels}},
		}}, nil, nil, bin.name)
	if err != nil && !busy(err) {
		return fail(err)
	}
	created := err == nil
	for {
		c, err := p.agentMarker(mctx, bin)
		if err == nil && created && p.podman {
			err = p.fillVolume(mctx, c.ID, bin)
		}
		if !notFound(err) {
			return c, err
		}
		if err := sleep(mctx, 20*time.Millisecond); err != nil {
			return fail(err)
		}
	}
}

// agentComplete reports whether the volume holds the whole binary.
func (p *Provider) agentComplete(ctx context.Context, marker string, bin *agentBinary) bool {
	stat, err := p.api.ContainerStatPath(ctx, marker, agent.Path)
	return err == nil && stat.Size == bin.size
}

// removeAgent removes the marker and then the volume, if nothing mounts it.
func (p *Provider) removeAgent(ctx context.Context, marker, volume string) error {
	ctx, cancel := p.mutating(ctx)
	defer cancel()
	if err := p.api.ContainerRemove(ctx, marker, container.RemoveOptions{Force: true}); err != nil && !notFound(err) {
		return err
	}
	if err := p.api.VolumeRemove(ctx, volume, false); err != nil && !notFound(err) {
		return err
	}
	return nil
}

// agentImageID returns the id of the agent's image, importing it if need be.
func (p *Provider) agentImageID(ctx context.Context, bin *agentBinary) (string, error) {
	ref := bin.name + ":latest"
	img, err := p.api.ImageInspect(ctx, ref)
	if err == nil && img.Config != nil && img.Config.Labels[provider.LabelRole] == provider.RoleAgent {
		return img.ID, nil
	}
	if err == nil {
		return "", &provider.Error{Kind: provider.ErrNotOurs, Err: fmt.Errorf("image %s", ref)}
	}
	if !notFound(err) {
		return "", err
	}
	ctx, cancel := p.mutating(ctx)
	defer cancel()
	r, w := io.Pipe()
	defer r.Close()
	go func() { w.CloseWithError(writeAgentImage(w, bin)) }()
	body, err := p.api.ImageImport(ctx, image.ImportSource{Source: r, SourceName: "-"}, ref, image.ImportOptions{
		Changes: []string{
			// One a line: Podman takes what follows the first for a part of its value.
			"LABEL " + provider.LabelSandbox + "=1",
			"LABEL " + provider.LabelRole + "=" + provider.RoleAgent,
			"CMD " + agent.Path,
		},
	})
	if err != nil {
		return "", err
	}
	defer body.Close()
	if err := readMessages(body, func(*imageMessage) {}); err != nil {
		return "", err
	}
	img, err = p.api.ImageInspect(ctx, ref)
	return img.ID, err
}

// writeAgentImage writes the image's only layer: the agent, and the empty
// directory whose owner the engine copies to a new workspace volume.
func writeAgentImage(w io.Writer, bin *agentBinary) error {
	tw := tar.NewWriter(w)
	for _, h := range []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "opt/", Mode: 0o755},
		{Typeflag: tar.TypeDir, Name: agent.Mount[1:] + "/", Mode: 0o755},
		workspaceEntry,
	} {
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
	}
	return writeAgent(tw, agent.Path[1:], bin)
}

// writeAgent adds the agent to an archive, as the last entry.
func writeAgent(tw *tar.Writer, name string, bin *agentBinary) error {
	f, err := os.Open(bin.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: bin.size}); err != nil {
		return err
	}
	if _, err := io.Copy(tw, f); err != nil {
		return err
	}
	return tw.Close()
}

// workspaceEntry is /workspace as it must be, in a tar archive of the root.
var workspaceEntry = &tar.Header{Typeflag: tar.TypeDir, Name: provider.Workspace[1:] + "/", Mode: 0o755, Uid: 1000, Gid: 1000}

// sleep waits, or returns the cause of ctx's end.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
