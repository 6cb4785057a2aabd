package docker

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/volume"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/provider"
)

// skillsMount is where the skills volume is writable, for root alone: its root
// directory belongs to root, and commands run as uid 1000.
const skillsMount = "/opt/capybara/skills"

// sandboxUser is the uid and gid of everything that runs in a sandbox.
const sandboxUser = "1000:1000"

// stopSeconds is how long a sandbox may take to stop. The engine's own end
// waits that long for one that does not.
const stopSeconds = 5

// noLog keeps the engine from storing the session's bytes.
var noLog = container.LogConfig{Type: "none"}

// plan is a validated spec with everything decided that its container needs.
type plan struct {
	spec     provider.Spec
	instance string
	created  time.Time
	labels   map[string]string // of the container
	network  container.NetworkMode
}

func (pl *plan) workspace() string { return pl.spec.Name + provider.SuffixWorkspace }
func (pl *plan) skills() string    { return pl.spec.Name + provider.SuffixSkills }

// commonLabels are the labels of everything, for a role.
func (p *Provider) commonLabels(role string) map[string]string {
	labels := map[string]string{}
	for k, v := range p.cfg.Labels {
		labels[k] = v
	}
	labels[provider.LabelSandbox] = "1"
	labels[provider.LabelRole] = role
	labels[provider.LabelOwner] = provider.Self().Label()
	labels[provider.LabelCreated] = time.Now().UTC().Format(time.RFC3339Nano)
	return labels
}

// partLabels are the labels of a part of the planned sandbox.
func (p *Provider) partLabels(pl *plan, role string) map[string]string {
	labels := p.commonLabels(role)
	labels[provider.LabelName] = pl.spec.Name
	labels[provider.LabelInstance] = pl.instance
	labels[provider.LabelCreated] = pl.created.Format(time.RFC3339Nano)
	if pl.spec.Keep {
		labels[provider.LabelKeep] = "1"
	}
	if pl.spec.TTL > 0 {
		labels[provider.LabelExpires] = pl.created.Add(pl.spec.TTL).Format(time.RFC3339Nano)
	}
	return labels
}

// sandboxLabels are the labels of the planned sandbox's container.
func (p *Provider) sandboxLabels(pl *plan) map[string]string {
	labels := p.partLabels(pl, provider.RoleSandbox)
	labels[provider.LabelEgress] = string(pl.spec.Egress)
	for key, list := range map[string]any{provider.LabelAllowHosts: pl.spec.AllowHosts, provider.LabelUser: pl.spec.Labels} {
		if b, err := json.Marshal(list); err == nil && string(b) != "null" {
			labels[key] = string(b)
		}
	}
	for k, v := range pl.spec.Labels {
		labels[k] = v
	}
	return labels
}

// containerConfig is what the engine is asked to create: all hardening and
// every limit in one place.
func (p *Provider) containerConfig(pl *plan, store *agentImage) (*container.Config, *container.HostConfig) {
	spec := pl.spec
	env := []string{"HOME=" + provider.Workspace, "LANG=C.UTF-8"}
	for k, v := range spec.Env {
		env = append(env, k+"="+v)
	}
	init := agent.InitOptions{Keep: spec.Keep}
	if spec.TTL > 0 {
		init.Expires = pl.created.Add(spec.TTL)
	}
	stopSeconds := stopSeconds
	config := &container.Config{
		Image:       spec.Image,
		Entrypoint:  agent.InitArgs(init),
		Cmd:         []string{}, // not the image's
		User:        sandboxUser,
		WorkingDir:  provider.Workspace,
		Env:         env,
		Labels:      pl.labels,
		Hostname:    "sandbox",
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		StopSignal:  "SIGTERM",
		StopTimeout: &stopSeconds,
		// The session of whoever starts the container is the first process's
		// stdin and stdout. StdinOnce closes its stdin when that client is gone.
		OpenStdin: true, StdinOnce: true,
		AttachStdin: true, AttachStdout: true, AttachStderr: true,
	}
	noInit := false
	host := &container.HostConfig{
		LogConfig:      noLog,
		NetworkMode:    pl.network,
		Runtime:        p.cfg.Runtime,
		Init:           &noInit,
		IpcMode:        container.IPCModePrivate,
		CapDrop:        []string{"ALL"},
		SecurityOpt:    []string{"no-new-privileges"},
		ReadonlyRootfs: true,
		// exec: scripts and build results run from /tmp, as they do elsewhere.
		Tmpfs: map[string]string{provider.TempDir: fmt.Sprintf("rw,exec,nosuid,nodev,mode=1777,size=%d", tmpSize(spec))},
		Mounts: []mount.Mount{
			p.volumeMount(pl, provider.RoleWorkspace, pl.workspace(), provider.Workspace, false),
			p.volumeMount(pl, provider.RoleSkills, pl.skills(), provider.SkillsDir, true),
			p.volumeMount(pl, provider.RoleSkills, pl.skills(), skillsMount, false),
			{Type: mount.TypeVolume, Source: store.volume, Target: agent.Mount, ReadOnly: true,
				VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: p.commonLabels(provider.RoleAgent)}},
		},
		Resources: container.Resources{
			NanoCPUs:   int64(spec.CPU * 1e9),
			Memory:     spec.Memory,
			MemorySwap: spec.Memory, // memory and swap together: none extra
			PidsLimit:  &spec.PIDs,
		},
	}
	return config, host
}

// volumeMount mounts a volume of the sandbox. Nothing of the image is copied
// into it: that would also take over the owner of the image's directory. The
// labels count where the engine has to make the volume anew.
func (p *Provider) volumeMount(pl *plan, role, source, target string, readOnly bool) mount.Mount {
	return mount.Mount{Type: mount.TypeVolume, Source: source, Target: target, ReadOnly: readOnly,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: p.partLabels(pl, role)}}
}

// tmpSize is the size of /tmp: it counts against the memory limit, so it can
// take half of that at most.
func tmpSize(spec provider.Spec) int64 {
	size := spec.Memory / 2
	if spec.Disk > 0 {
		size = min(size, spec.Disk)
	}
	return max(16<<20, size)
}

// skillsOptions are the options for the skills volume.
func (p *Provider) skillsOptions(pl *plan) volume.CreateOptions {
	o := volume.CreateOptions{Name: pl.skills(), Labels: p.partLabels(pl, provider.RoleSkills)}
	if p.podman {
		o.DriverOpts = ownedBy(0)
	}
	return o
}

// workspaceOptions are the options for the workspace volume.
func (p *Provider) workspaceOptions(pl *plan) volume.CreateOptions {
	o := volume.CreateOptions{Name: pl.workspace(), Driver: p.cfg.VolumeDriver, Labels: p.partLabels(pl, provider.RoleWorkspace)}
	if p.cfg.VolumeDriver != "" && pl.spec.Disk > 0 {
		o.DriverOpts = map[string]string{"size": strconv.FormatInt(pl.spec.Disk, 10)}
	}
	if p.podman && p.cfg.VolumeDriver == "" {
		o.DriverOpts = ownedBy(1000)
	}
	return o
}
