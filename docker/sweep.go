package docker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/docker/docker/api/types/image"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/provider"
)

// createGrace is how old a part without a running sandbox must be before it is
// taken for abandoned where its owner cannot be asked: it may be in the making
// by a runner on another host.
const createGrace = 10 * time.Minute

// Sweep implements [provider.Provider]. Besides sandboxes it removes agents of
// other versions that nothing mounts and whose installer is dead.
func (p *Provider) Sweep(ctx context.Context) (provider.SweepReport, error) {
	var report provider.SweepReport
	found, err := p.parts(ctx)
	if err != nil {
		return report, p.fail(ctx, "sweep", "", err)
	}
	sandboxes := map[string][]part{} // by instance
	var shared, agents []part
	for _, x := range found {
		switch x.labels[provider.LabelRole] {
		case provider.RoleAgent:
			agents = append(agents, x)
		case provider.RoleSharedNetwork:
			shared = append(shared, x)
		default:
			key := x.labels[provider.LabelName] + "/" + x.labels[provider.LabelInstance]
			sandboxes[key] = append(sandboxes[key], x)
		}
	}
	var errs []error
	removed := func(parts []part) {
		for _, x := range parts {
			switch x.kind {
			case containerPart:
				report.Sandboxes = append(report.Sandboxes, x.name)
			case networkPart:
				report.Networks = append(report.Networks, x.name)
			case volumePart:
				report.Volumes = append(report.Volumes, x.name)
			}
		}
	}
	for _, parts := range sandboxes {
		abandoned, err := p.abandoned(ctx, parts)
		if err == nil && abandoned {
			var gone []part
			labels := parts[0].labels
			gone, err = p.removeAll(ctx, provider.LabelName+"="+labels[provider.LabelName], provider.LabelInstance+"="+labels[provider.LabelInstance])
			if err == nil {
				removed(gone)
			}
		}
		errs = append(errs, err)
	}
	for _, x := range shared {
		owner := provider.ParseOwner(x.labels[provider.LabelOwner])
		// The engine refuses to remove a network that a container uses.
		if owner.Known() && !owner.Alive() && p.api.NetworkRemove(ctx, x.id) == nil {
			removed([]part{x})
		}
	}
	removed(p.sweepAgents(ctx, agents))
	p.sweepAgentImages(ctx)
	for _, names := range [][]string{report.Sandboxes, report.Networks, report.Volumes} {
		slices.Sort(names)
	}
	return report, p.fail(ctx, "sweep", "", errors.Join(errs...))
}

// abandoned reports whether nobody holds a sandbox any more. Its parts are
// those of one create and carry the same owner and life time.
func (p *Provider) abandoned(ctx context.Context, parts []part) (bool, error) {
	labels := parts[0].labels
	if _, failed := p.failed.Load(labels[provider.LabelInstance]); failed {
		return true, nil
	}
	if expires, err := time.Parse(time.RFC3339Nano, labels[provider.LabelExpires]); err == nil {
		return time.Now().After(expires), nil
	}
	if labels[provider.LabelKeep] == "1" {
		return false, nil
	}
	if owner := provider.ParseOwner(labels[provider.LabelOwner]); owner.Known() {
		return !owner.Alive(), nil
	}
	// The owner is on another host, or was before a reboot. The agent knows
	// better than we do whether it is gone: it ends when it is.
	for _, x := range parts {
		if x.labels[provider.LabelRole] != provider.RoleSandbox || x.state == "created" {
			continue
		}
		c, err := p.api.ContainerInspect(ctx, x.id)
		if notFound(err) {
			return false, nil // somebody is removing it
		}
		if err != nil {
			return false, err
		}
		return !c.State.Running && c.State.ExitCode != agent.ExitTerminated, nil
	}
	created, err := time.Parse(time.RFC3339Nano, labels[provider.LabelCreated])
	return err == nil && time.Since(created) > createGrace, nil
}

// sweepAgents removes what is left of other versions of the agent.
func (p *Provider) sweepAgents(ctx context.Context, agents []part) []part {
	bin, _ := p.agentBinary() // nil: none is ours
	var removed []part
	for _, x := range agents {
		owner := provider.ParseOwner(x.labels[provider.LabelOwner])
		if x.kind != containerPart || !owner.Known() || owner.Alive() || bin != nil && x.name == bin.name {
			continue
		}
		// A volume that a sandbox mounts is not removed, and then the container
		// that says that it is filled must stay. So the users are looked for
		// first.
		users, err := p.api.ContainerList(ctx, volumeUsers(x.name))
		if err != nil || len(users) != 1 {
			continue
		}
		if p.removeAgent(ctx, x.id, x.name) != nil {
			continue
		}
		p.api.ImageRemove(ctx, x.name+":latest", image.RemoveOptions{}) // in use elsewhere: stays
		removed = append(removed, part{kind: volumePart, name: x.name})
	}
	return removed
}

// sweepAgentImages removes images of the agent that have lost their tag. Where
// a container stands for one, the engine refuses.
func (p *Provider) sweepAgentImages(ctx context.Context) {
	f := ours(provider.LabelRole + "=" + provider.RoleAgent)
	f.Add("dangling", "true")
	images, err := p.api.ImageList(ctx, image.ListOptions{Filters: f})
	if err != nil {
		return // the next sweep will
	}
	for _, img := range images {
		if !carries(img.Labels, provider.LabelRole+"="+provider.RoleAgent) {
			continue
		}
		p.api.ImageRemove(ctx, img.ID, image.RemoveOptions{})
	}
}
