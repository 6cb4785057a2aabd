package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/provider"
)

// Open implements [provider.Provider].
func (p *Provider) Open(ctx context.Context, name string) (provider.Sandbox, error) {
	if err := provider.CheckName(name); err != nil {
		return nil, err
	}
	c, err := p.byName(ctx, "open", name)
	if err != nil {
		return nil, err
	}
	return p.newSandbox(name, c.ID, c.Config.Labels[provider.LabelInstance]), nil
}

// byName inspects the sandbox of a name. The engine also takes the beginning
// of an id for a name, so a container of another name is as good as none.
func (p *Provider) byName(ctx context.Context, op, name string) (container.InspectResponse, error) {
	c, err := p.api.ContainerInspect(ctx, name)
	switch {
	case notFound(err), err == nil && strip(c.Name) != name:
		return c, &provider.Error{Op: op, Sandbox: name, Kind: provider.ErrGone}
	case err != nil:
		return c, p.fail(ctx, op, name, err)
	case c.Config.Labels[provider.LabelSandbox] != "1" || c.Config.Labels[provider.LabelRole] != provider.RoleSandbox:
		return c, &provider.Error{Op: op, Sandbox: name, Kind: provider.ErrNotOurs, Err: fmt.Errorf("container %s", name)}
	}
	return c, nil
}

// List implements [provider.Provider].
func (p *Provider) List(ctx context.Context) ([]provider.Info, error) {
	found, err := p.api.ContainerList(ctx, container.ListOptions{All: true, Filters: ours(provider.LabelRole + "=" + provider.RoleSandbox)})
	if err != nil {
		return nil, p.fail(ctx, "list", "", err)
	}
	list := make([]provider.Info, 0, len(found))
	for _, s := range found {
		c, err := p.api.ContainerInspect(ctx, s.ID)
		if notFound(err) {
			continue // destroyed since
		}
		if err != nil {
			return nil, p.fail(ctx, "list", "", err)
		}
		list = append(list, infoOf(c))
	}
	slices.SortFunc(list, func(a, b provider.Info) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// infoOf reads a sandbox's container.
func infoOf(c container.InspectResponse) provider.Info {
	labels := c.Config.Labels
	owner := provider.ParseOwner(labels[provider.LabelOwner])
	info := provider.Info{
		Name:       strip(c.Name),
		ID:         c.ID,
		Image:      c.Config.Image,
		State:      stateOf(c.State),
		Owner:      owner,
		OwnerAlive: owner.Known() && owner.Alive(),
		Egress:     provider.Egress(labels[provider.LabelEgress]),
		Keep:       labels[provider.LabelKeep] == "1",
	}
	info.Created, _ = time.Parse(time.RFC3339Nano, labels[provider.LabelCreated])
	info.Expires, _ = time.Parse(time.RFC3339Nano, labels[provider.LabelExpires])
	json.Unmarshal([]byte(labels[provider.LabelAllowHosts]), &info.AllowHosts) // absent: none
	json.Unmarshal([]byte(labels[provider.LabelUser]), &info.Labels)
	return info
}

func stateOf(s *container.State) provider.State {
	switch {
	case s.Paused:
		return provider.StatePaused
	case s.Running:
		return provider.StateRunning
	case s.Status == "created":
		return provider.StateCreated
	case s.ExitCode == agent.ExitTerminated:
		return provider.StateSuspended
	}
	return provider.StateDead
}

// ours is a filter for resources with our label and others ("key=value").
func ours(labels ...string) filters.Args {
	f := filters.NewArgs(filters.Arg("label", provider.LabelSandbox+"=1"))
	for _, l := range labels {
		f.Add("label", l)
	}
	return f
}

// part is a resource of ours: a container, a network or a volume.
type part struct {
	kind   partKind
	id     string // what the engine is told to remove
	name   string // for people
	state  string // of a container
	labels map[string]string
}

type partKind int

const (
	containerPart partKind = iota
	networkPart
	volumePart
)

// carries reports whether labels hold our own and others ("key=value"). What an
// engine lists is looked at again before anything is done to it: Podman's volumes
// need have only one of the labels that they are filtered by.
func carries(labels map[string]string, others ...string) bool {
	for _, l := range append(others, provider.LabelSandbox+"=1") {
		key, value, _ := strings.Cut(l, "=")
		if got, ok := labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// parts lists everything of ours that has the labels.
func (p *Provider) parts(ctx context.Context, labels ...string) ([]part, error) {
	var found []part
	add := func(x part) {
		if carries(x.labels, labels...) {
			found = append(found, x)
		}
	}
	containers, err := p.api.ContainerList(ctx, container.ListOptions{All: true, Filters: ours(labels...)})
	if err != nil {
		return nil, err
	}
	for _, c := range containers {
		add(part{kind: containerPart, id: c.ID, name: strip(c.Names[0]), state: c.State, labels: c.Labels})
	}
	networks, err := p.api.NetworkList(ctx, network.ListOptions{Filters: ours(labels...)})
	if err != nil {
		return nil, err
	}
	for _, n := range networks {
		add(part{kind: networkPart, id: n.ID, name: n.Name, labels: n.Labels})
	}
	volumes, err := p.api.VolumeList(ctx, volume.ListOptions{Filters: ours(labels...)})
	if err != nil {
		return nil, err
	}
	for _, v := range volumes.Volumes {
		add(part{kind: volumePart, id: v.Name, name: v.Name, labels: v.Labels})
	}
	return found, nil
}

// volumeUsers lists the containers, running or not, that mount a volume.
func volumeUsers(volume string) container.ListOptions {
	return container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("volume", volume))}
}
