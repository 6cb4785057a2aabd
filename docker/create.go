package docker

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/api/types/volume"
	"golang.org/x/sync/errgroup"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
)

// Create implements [provider.Provider].
func (p *Provider) Create(ctx context.Context, spec provider.Spec) (_ provider.Sandbox, err error) {
	pl, err := p.plan(ctx, spec)
	if err != nil {
		return nil, err
	}
	name := pl.spec.Name
	if err := p.creates.Acquire(ctx, 1); err != nil {
		return nil, p.fail(ctx, "create", name, err)
	}
	defer p.creates.Release(1)

	if spec.Replace {
		if err := p.destroy(ctx, name, ""); err != nil && !errors.Is(err, provider.ErrGone) {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.undo(ctx, pl, err))
		}
	}()
	sb, err := p.create(ctx, pl, false)
	if errors.Is(err, errAgentMissing) {
		// Somebody pruned the agent's volume since this process looked.
		if err := p.undo(ctx, pl, err); err != nil {
			return nil, err
		}
		sb, err = p.create(ctx, pl, true)
	}
	if err != nil {
		return nil, err
	}
	return sb, nil
}

// plan validates the spec and fills in the defaults.
func (p *Provider) plan(ctx context.Context, spec provider.Spec) (*plan, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if spec.Name == "" {
		spec.Name = provider.GenerateName()
	}
	spec.Image = cmp.Or(spec.Image, p.cfg.Image)
	if err := checkReference(spec.Image); err != nil {
		return nil, err
	}
	spec = spec.WithDefaults()
	if err := p.checkEgress(spec.Egress); err != nil {
		return nil, err
	}
	if spec.CPU > 1 { // every engine has one
		info, err := p.api.Info(ctx)
		if err != nil {
			return nil, p.fail(ctx, "create", spec.Name, err)
		}
		if spec.CPU > float64(info.NCPU) {
			return nil, &provider.InvalidError{Field: "cpu", Value: fmt.Sprint(spec.CPU), Reason: fmt.Sprintf("the engine has %d processors", info.NCPU)}
		}
	}
	pl := &plan{spec: spec, instance: strings.ToLower(rand.Text()), created: time.Now().UTC()}
	pl.labels = p.sandboxLabels(pl)
	return pl, nil
}

func (p *Provider) create(ctx context.Context, pl *plan, verifyAgent bool) (*Sandbox, error) {
	name := pl.spec.Name
	var store *agentImage
	var err error

	// What does not depend on each other is asked for at once: on the engine
	// each of these costs milliseconds of waiting.
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.ensureImage(gctx, name, pl.spec.Image) })
	g.Go(func() (err error) { store, err = p.ensureAgent(gctx, verifyAgent); return err })
	g.Go(func() (err error) { pl.network, err = p.joinNetwork(gctx, pl.spec.Egress); return err })
	g.Go(func() error { return p.createVolumes(ctx, pl) })
	if err := g.Wait(); err != nil {
		return nil, p.fail(ctx, "create", name, err)
	}
	p.warnDisk(ctx, pl)

	var id, helper string
	g = new(errgroup.Group)
	g.Go(func() (err error) { helper, err = p.createHelper(ctx, pl, store); return err })
	g.Go(func() (err error) { id, err = p.createContainer(ctx, pl, store); return err })
	err = g.Wait()
	if err == nil {
		err = canceled(ctx)
	}
	if err != nil {
		return nil, p.fail(ctx, "create", name, err)
	}

	sb := p.newSandbox(name, id, pl.instance)
	if err := sb.startAttached(ctx); err != nil {
		sb.close()
		return nil, err
	}
	// The helper has done its work; its removal costs the caller no time.
	if !p.inBackground(func() { p.removeHelper(ctx, helper) }) {
		p.removeHelper(ctx, helper)
	}
	return sb, nil
}

// createVolumes takes the sandbox's name, so to speak: the engine would mount a
// stranger's volume of that name without a word, so both are created before
// anything that mounts them. Of several creates of one name, the one that gets
// the first volume wins; they must not be asked for at once, or each could get
// one.
func (p *Provider) createVolumes(ctx context.Context, pl *plan) error {
	for _, o := range []volume.CreateOptions{p.workspaceOptions(pl), p.skillsOptions(pl)} {
		if err := p.createVolume(ctx, pl, o); err != nil {
			return err
		}
	}
	return nil
}

// createVolume creates a volume, or fails where one of that name exists.
// The engine returns an existing volume as if it had created it, so the
// instance label tells.
func (p *Provider) createVolume(ctx context.Context, pl *plan, o volume.CreateOptions) error {
	mctx, cancel := p.mutating(ctx)
	defer cancel()
	vol, err := p.api.VolumeCreate(mctx, o)
	if err != nil {
		if busy(err) { // it exists with another driver or other options
			return p.taken(pl, "volume "+o.Name, nil)
		}
		err = p.fail(ctx, "create", pl.spec.Name, err)
		if o.Driver != "" {
			return driverFailed(o, err)
		}
		return err
	}
	if vol.Labels[provider.LabelInstance] != pl.instance {
		return p.taken(pl, "volume "+o.Name, vol.Labels)
	}
	return canceled(ctx)
}

// driverFailed tells what a refusal of the configured volume driver means: it is
// there for the disk limit.
func driverFailed(o volume.CreateOptions, err error) error {
	e, ok := errors.AsType[*provider.Error](err)
	if !ok || e.Kind != provider.ErrRefused {
		return err
	}
	if o.DriverOpts["size"] != "" {
		e.Kind = provider.ErrLimit
	}
	switch msg := e.Err.Error(); {
	case strings.Contains(msg, "volume plugin"):
		e.Hint = "volume_driver names a driver that the engine does not have: install it, or configure one of those that `docker info` lists"
	case strings.Contains(msg, "quota"):
		e.Hint = "the engine's disk has no project quotas (xfs or ext4 mounted with prjquota): configure a volume_driver that bounds volumes by itself, or set no disk limit"
	case e.Kind == provider.ErrLimit:
		e.Hint = fmt.Sprintf("the volume driver %q must take the option size, in bytes: configure another, or set no disk limit", o.Driver)
	}
	return e
}

// taken is the error for a name that something else has.
func (p *Provider) taken(pl *plan, what string, labels map[string]string) error {
	e := &provider.Error{Op: "create", Sandbox: pl.spec.Name, Kind: provider.ErrNotOurs,
		Err: fmt.Errorf("the name is taken by the %s", what), Hint: "choose another name"}
	if labels[provider.LabelSandbox] == "1" {
		e.Kind = provider.ErrExists
		e.Hint = "replace it, open it, or remove it with `capyrun rm " + pl.spec.Name + "`"
	}
	return e
}

// createContainer creates the sandbox's container.
func (p *Provider) createContainer(ctx context.Context, pl *plan, store *agentImage) (string, error) {
	config, host := p.containerConfig(pl, store)
	mctx, cancel := p.mutating(ctx)
	defer cancel()
	name := pl.spec.Name
	resp, err := p.createNamed(mctx, pl, name, config, host)
	if err != nil {
		return "", p.fail(ctx, "create", name, p.explainRuntime(mctx, err))
	}
	for _, w := range resp.Warnings {
		// The engine creates the container all the same and says so here.
		if strings.Contains(w, "discarded") {
			return "", &provider.Error{Op: "create", Sandbox: name, Kind: provider.ErrLimit, Err: errors.New(w)}
		}
		p.warnOnce(ctx, w)
	}
	return resp.ID, nil
}

var unknownRuntime = regexp.MustCompile(`(?i)unknown( or invalid)? runtime`)

// explainRuntime adds to the engine's refusal of a runtime which it has.
func (p *Provider) explainRuntime(ctx context.Context, err error) error {
	if !unknownRuntime.MatchString(err.Error()) {
		return err
	}
	reason := "the engine does not know this OCI runtime"
	if info, err := p.api.Info(ctx); err == nil {
		reason += "; it has " + runtimes(info)
	}
	return &provider.InvalidError{Field: "runtime", Value: p.cfg.Runtime, Reason: reason + ". Others are added to \"runtimes\" in its /etc/docker/daemon.json"}
}

// runtimes lists the OCI runtimes of an engine.
func runtimes(info system.Info) string {
	return strings.Join(slices.Sorted(maps.Keys(info.Runtimes)), ", ")
}

// createNamed creates a container of a name that may be taken. The engine holds
// the name of a container for a moment after it has forgotten it.
func (p *Provider) createNamed(ctx context.Context, pl *plan, name string, config *container.Config, host *container.HostConfig) (container.CreateResponse, error) {
	for end := time.Now().Add(holdTimeout); ; {
		resp, err := p.api.ContainerCreate(ctx, config, host, nil, nil, name)
		if err == nil || !busy(err) {
			return resp, err
		}
		c, inspectErr := p.api.ContainerInspect(ctx, name)
		if inspectErr == nil {
			return resp, p.taken(pl, "container "+name, c.Config.Labels)
		}
		if !notFound(inspectErr) || time.Now().After(end) {
			return resp, err
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return resp, err
		}
	}
}

// createHelper creates the container whose creation gives the workspace to uid
// 1000: into an empty volume the engine copies the directory of the image,
// with its owner. It is never started.
func (p *Provider) createHelper(ctx context.Context, pl *plan, store *agentImage) (string, error) {
	mctx, cancel := p.mutating(ctx)
	defer cancel()
	resp, err := p.createNamed(mctx, pl, pl.spec.Name+provider.SuffixHelper,
		&container.Config{Image: store.image, Labels: p.partLabels(pl, provider.RoleHelper)},
		&container.HostConfig{NetworkMode: "none", LogConfig: noLog, Mounts: []mount.Mount{
			{Type: mount.TypeVolume, Source: pl.workspace(), Target: provider.Workspace,
				VolumeOptions: &mount.VolumeOptions{Labels: p.partLabels(pl, provider.RoleWorkspace)}},
		}})
	if notFound(err) {
		return "", errAgentMissing
	}
	if err != nil {
		return "", err
	}
	if p.cfg.VolumeDriver != "" {
		// A new volume of another driver may hold something (lost+found), and a
		// volume that is not empty is not copied into. An archive that is unpacked
		// over the root sets the owner too; it costs more.
		var archive bytes.Buffer
		tw := tar.NewWriter(&archive)
		if err := errors.Join(tw.WriteHeader(workspaceEntry), tw.Close()); err != nil {
			return "", err
		}
		if err := p.api.CopyToContainer(mctx, resp.ID, "/", &archive, container.CopyToContainerOptions{}); err != nil {
			return "", err
		}
	}
	return resp.ID, nil
}

// removeHelper removes the helper; where that fails, Sweep will.
func (p *Provider) removeHelper(ctx context.Context, id string) {
	ctx, cancel := p.mutating(ctx)
	defer cancel()
	if err := p.removeContainer(ctx, id); err != nil {
		event.Warn(ctx, "helper container left behind, `capyrun gc` removes it: "+err.Error())
	}
}

// warnDisk tells that the disk limit is not held.
func (p *Provider) warnDisk(ctx context.Context, pl *plan) {
	if pl.spec.Disk > 0 && p.cfg.VolumeDriver == "" {
		p.warnOnce(ctx, "the disk limit is not enforced: the engine's local volume driver has no size; configure volume_driver")
	}
}

func (p *Provider) warnOnce(ctx context.Context, text string) {
	if _, given := p.warned.LoadOrStore(text, struct{}{}); !given {
		event.Warn(ctx, text)
	}
}
