package docker

import (
	"context"
	"fmt"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"

	"github.com/capybara-hq/capyrun/provider"
)

// checkEgress reports an egress mode that this provider does not have or that
// its operator has not allowed.
func (p *Provider) checkEgress(egress provider.Egress) error {
	switch egress {
	case provider.EgressNone:
		return nil
	case provider.EgressOpen:
		if p.cfg.AllowOpenEgress {
			return nil
		}
		return &provider.InvalidError{Field: "egress", Value: string(egress),
			Reason: "an open sandbox reaches the host's services, the local network and the cloud's metadata server; only the operator can allow that, with the setting allow_open_egress"}
	}
	return &provider.InvalidError{Field: "egress", Value: string(egress), Reason: `this provider has "none" and "open"`}
}

// joinNetwork makes sure that the network of an egress mode exists and returns
// how a container joins it.
func (p *Provider) joinNetwork(ctx context.Context, egress provider.Egress) (container.NetworkMode, error) {
	if egress != provider.EgressOpen {
		return network.NetworkNone, nil
	}
	name := p.cfg.Network + "-open"
	return container.NetworkMode(name), p.ensureSharedNetwork(ctx, name)
}

// ensureSharedNetwork creates the bridge that open sandboxes share. They reach
// the outside, not each other.
func (p *Provider) ensureSharedNetwork(ctx context.Context, name string) error {
	check := func() error {
		n, err := p.api.NetworkInspect(ctx, name, network.InspectOptions{})
		// The engine also takes the beginning of an id for a name.
		if err == nil && (n.Name != name || n.Labels[provider.LabelRole] != provider.RoleSharedNetwork) {
			return &provider.Error{Op: "create", Kind: provider.ErrNotOurs, Err: fmt.Errorf("network %s", name), Hint: "configure another network"}
		}
		return err
	}
	if err := check(); !notFound(err) {
		return err
	}
	mctx, cancel := p.mutating(ctx)
	defer cancel()
	_, err := p.api.NetworkCreate(mctx, name, network.CreateOptions{
		Driver:  "bridge",
		Labels:  p.commonLabels(provider.RoleSharedNetwork),
		Options: map[string]string{"com.docker.network.bridge.enable_icc": "false"},
	})
	if err != nil && busy(err) { // another runner was quicker
		return check()
	}
	return err
}
