// Package sandbox is the Starlark module that creates sandboxes and works with
// them. The comments on its functions are the manual for authors of workflows.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	startime "go.starlark.net/lib/time"
	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/starlib/script"
)

// Module is the sandbox module:
//
//   - create(image, name, cpu, memory, disk, pids, egress, allow_hosts, env,
//     labels, ttl, keep, replace, timeout) makes a sandbox, see [create];
//   - open(name) finds an existing one;
//   - list() describes all that exist on the engine;
//   - destroy(name) removes one;
//   - gc() removes what runs that died have left.
//
// A sandbox that the run created is destroyed when the run ends, however it
// ends, unless keep or ttl says otherwise.
var Module = script.NewModule("sandbox", map[string]script.Function{
	"create":  create,
	"open":    open,
	"list":    list,
	"destroy": destroy,
	"gc":      gc,
})

// create makes a sandbox and returns it when it takes commands. All arguments
// are optional:
//
//   - image: an image reference; the default is the provider's
//   - name: unique on the engine; without it one is made
//   - cpu: processors, fractions allowed; default 1
//   - memory: a size such as "512M"; default "1G"
//   - disk: the size of /workspace; without it there is no limit
//   - pids: how many processes and threads; default 1024
//   - egress: "none" (default), "allowlist" or "open"
//   - allow_hosts: the hosts that can be reached; alone it means
//     egress = "allowlist"
//   - env: a dict, the environment of every command
//   - labels: a dict, shown by sandbox.list
//   - ttl: a duration after which the sandbox ends; it then outlives the run
//   - keep: True lets the sandbox outlive the run
//   - replace: True destroys a sandbox of ours of the same name first
//   - timeout: how long the creation may take
func create(t *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var (
		spec          provider.Spec
		cpu           script.Number
		memory, disk  script.Size
		pids          script.Count
		egress        string
		hosts         script.Strings
		env, labels   script.StringMap
		ttl, deadline script.Timeout
	)
	err := script.Unpack(args, kwargs, "image??", &spec.Image, "name??", &spec.Name, "cpu??", &cpu, "memory??", &memory, "disk??", &disk,
		"pids??", &pids, "egress??", &egress, "allow_hosts??", &hosts, "env??", &env, "labels??", &labels, "ttl??", &ttl,
		"keep??", &spec.Keep, "replace??", &spec.Replace, "timeout??", &deadline)
	if err != nil {
		return nil, err
	}
	spec.CPU, spec.Memory, spec.Disk, spec.PIDs = float64(cpu), int64(memory), int64(disk), int64(pids)
	spec.Egress, spec.AllowHosts = provider.Egress(egress), hosts
	spec.Env, spec.Labels, spec.TTL = env, labels, time.Duration(ttl)
	if egress == "" && len(hosts) > 0 {
		spec.Egress = provider.EgressAllowlist
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	p, err := t.Sandboxes()
	if err != nil {
		return nil, err
	}
	kept := spec.Keep || spec.TTL > 0
	// Whether a sandbox outlives its owner is decided at its creation.
	spec.Keep = spec.Keep || t.MayKeep
	title := spec.Image
	if title == "" {
		title = "default image"
	}
	ctx, span := event.Begin(t.Ctx, event.Event{Kind: event.KindCreate, Name: "create " + title, Sandbox: spec.Name})
	ctx, cancel := within(ctx, time.Duration(deadline))
	defer cancel()
	sb, err := p.Create(ctx, spec)
	if err != nil {
		span.End(err, nil)
		return nil, err
	}
	// Owned even when the run was cancelled meanwhile: it exists.
	t.Own(sb, kept)
	span.End(nil, map[string]any{"sandbox": sb.Name()})
	return &Sandbox{run: t.Run, sb: sb}, nil
}

// within bounds ctx by a timeout that a script gave; 0 is none.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, d, &script.Failure{Kind: script.KindTimedOut, Msg: fmt.Sprintf("timed out after %v", d)})
}

// open(name) finds an existing sandbox, whoever created it. It fails with kind
// "gone" where there is none. The run does not destroy it at its end.
func open(t *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var name string
	if err := script.Unpack(args, kwargs, "name", &name); err != nil {
		return nil, err
	}
	p, err := t.Sandboxes()
	if err != nil {
		return nil, err
	}
	sb, err := p.Open(t.Ctx, name)
	if err != nil {
		return nil, err
	}
	return &Sandbox{run: t.Run, sb: sb}, nil
}

// list() returns a description of every sandbox on the engine, by name:
// .name, .image, .status, .egress, .allow_hosts, .created, .expires (None
// without a ttl), .keep, .owner_alive, .labels.
func list(t *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	if err := script.Unpack(args, kwargs); err != nil {
		return nil, err
	}
	p, err := t.Sandboxes()
	if err != nil {
		return nil, err
	}
	infos, err := p.List(t.Ctx)
	if err != nil {
		return nil, err
	}
	out := make([]starlark.Value, len(infos))
	for i, info := range infos {
		labels, err := script.FromGo(info.Labels)
		if err != nil {
			return nil, err
		}
		hosts, err := script.FromGo(info.AllowHosts)
		if err != nil {
			return nil, err
		}
		var expires starlark.Value = starlark.None
		if !info.Expires.IsZero() {
			expires = startime.Time(info.Expires)
		}
		out[i] = script.NewRecord("sandbox.info", starlark.StringDict{
			"name":        starlark.String(info.Name),
			"image":       starlark.String(info.Image),
			"status":      starlark.String(info.State),
			"egress":      starlark.String(info.Egress),
			"allow_hosts": hosts,
			"expires":     expires,
			"created":     startime.Time(info.Created),
			"keep":        starlark.Bool(info.Keep),
			"owner_alive": starlark.Bool(info.OwnerAlive),
			"labels":      labels,
		}, func() string {
			return fmt.Sprintf("<sandbox %s: %s, %s>", info.Name, info.Image, info.State)
		})
	}
	return starlark.NewList(out), nil
}

// destroy(name) removes a sandbox and everything that belongs to it. It fails
// with kind "gone" where there is none.
func destroy(t *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var name string
	if err := script.Unpack(args, kwargs, "name", &name); err != nil {
		return nil, err
	}
	p, err := t.Sandboxes()
	if err != nil {
		return nil, err
	}
	return starlark.None, remove(t, name, func(ctx context.Context) error { return p.Destroy(ctx, name) })
}

// gc() removes every sandbox whose run has died or whose time to live has passed,
// and what such sandboxes left, and nothing that is in use or kept. It returns
// the names of what it removed: .sandboxes, .networks and .volumes.
func gc(t *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	if err := script.Unpack(args, kwargs); err != nil {
		return nil, err
	}
	p, err := t.Sandboxes()
	if err != nil {
		return nil, err
	}
	ctx, span := event.Begin(t.Ctx, event.Event{Kind: event.KindSandbox, Name: "gc"})
	removed, err := p.Sweep(ctx)
	span.End(err, nil)
	if err != nil {
		return nil, err
	}
	fields := starlark.StringDict{}
	for name, list := range map[string][]string{"sandboxes": removed.Sandboxes, "networks": removed.Networks, "volumes": removed.Volumes} {
		if fields[name], err = script.FromGo(list); err != nil {
			return nil, err
		}
	}
	return script.NewRecord("sandbox.removed", fields, func() string {
		return fmt.Sprintf("<removed: %d sandboxes, %d networks, %d volumes>", len(removed.Sandboxes), len(removed.Networks), len(removed.Volumes))
	}), nil
}

func remove(t *script.Thread, name string, destroy func(context.Context) error) error {
	ctx, span := event.Begin(t.Ctx, event.Event{Kind: event.KindSandbox, Name: "destroy", Sandbox: name})
	err := destroy(ctx)
	span.End(err, nil)
	if err == nil || errors.Is(err, provider.ErrGone) {
		t.Disown(name)
	}
	return err
}
