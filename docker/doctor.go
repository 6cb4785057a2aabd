package docker

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/system"

	"github.com/capybara-hq/capyrun/provider"
)

// CheckStatus grades a [Check].
type CheckStatus string

const (
	CheckOK   CheckStatus = "ok"
	CheckWarn CheckStatus = "warn" // works, but something is not held or not there
	CheckFail CheckStatus = "fail" // sandboxes cannot be created
)

// Check is one finding about the engine.
type Check struct {
	Name   string      `json:"name"`
	Status CheckStatus `json:"status"`
	Detail string      `json:"detail"`        // what was found
	Fix    string      `json:"fix,omitempty"` // how to mend it
}

// Doctor looks at everything that sandboxes need of the engine. Its last check
// creates a sandbox, runs a command in it and destroys it.
func (p *Provider) Doctor(ctx context.Context) []Check {
	info, err := p.api.Info(ctx)
	if err != nil {
		return []Check{{"engine", CheckFail, p.fail(ctx, "connect", "", err).Error(), "start the engine, or set the endpoint"}}
	}
	checks := []Check{
		p.checkEngine(ctx, info),
		p.checkRuntime(info),
		p.checkLimits(info),
		p.checkVolumes(info),
		p.checkAgent(),
		p.checkDefaultImage(ctx),
		checkRegistryConfig(),
		p.checkAbandoned(ctx),
	}
	for _, c := range checks {
		if c.Status == CheckFail {
			return checks
		}
	}
	return append(checks, p.checkSandbox(ctx))
}

func (p *Provider) checkEngine(ctx context.Context, info system.Info) Check {
	c := Check{Name: "engine", Status: CheckOK, Detail: fmt.Sprintf("%s at %s, API %s, %s, linux/%s, %d processors, %d MiB",
		info.ServerVersion, p.cfg.Endpoint, p.api.ClientVersion(), info.OperatingSystem, p.arch, info.NCPU, info.MemTotal>>20)}
	v, err := p.api.ServerVersion(ctx)
	if err == nil && olderAPI(v.APIVersion, 1, 41) {
		c.Status, c.Fix = CheckFail, "capyrun needs Docker Engine 20.10 (API 1.41) or newer"
	}
	if c.Status == CheckOK && p.podman {
		c.Status, c.Detail = CheckWarn, "Podman "+c.Detail+"; "+podmanLacks
		c.Fix = "use a Docker Engine where that matters"
	}
	return c
}

// olderAPI compares an API version ("1.41") with major.minor.
func olderAPI(version string, major, minor int) bool {
	var a, b int
	if _, err := fmt.Sscanf(version, "%d.%d", &a, &b); err != nil {
		return false
	}
	return a < major || a == major && b < minor
}

func (p *Provider) checkRuntime(info system.Info) Check {
	if _, ok := info.Runtimes[p.cfg.Runtime]; !ok {
		return Check{"runtime", CheckFail, fmt.Sprintf("the engine does not know %q; it has %s", p.cfg.Runtime, runtimes(info)),
			"configure one that it has, or add it to \"runtimes\" in the engine's /etc/docker/daemon.json"}
	}
	return Check{Name: "runtime", Status: CheckOK, Detail: p.cfg.Runtime + "; the engine has " + runtimes(info)}
}

func (p *Provider) checkLimits(info system.Info) Check {
	var missing []string
	for _, l := range []struct {
		held bool
		name string
	}{
		{info.MemoryLimit, "memory"}, {info.PidsLimit, "pids"}, {info.CPUCfsQuota, "cpu"},
	} {
		if !l.held {
			missing = append(missing, l.name)
		}
	}
	detail := fmt.Sprintf("cgroup v%s, %s driver", info.CgroupVersion, info.CgroupDriver)
	switch {
	case len(missing) > 0:
		return Check{"limits", CheckFail, detail + "; not held: " + strings.Join(missing, ", "), "give the engine the cgroup controllers; rootless engines need cgroup v2 with delegation"}
	case !info.SwapLimit:
		return Check{"limits", CheckWarn, detail + "; swap is not limited", "boot with swapaccount=1 (cgroup v1), or switch swap off"}
	}
	return Check{Name: "limits", Status: CheckOK, Detail: detail + ", cpu, memory, swap and pids are held"}
}

func (p *Provider) checkVolumes(info system.Info) Check {
	if p.cfg.VolumeDriver == "" {
		return Check{"volumes", CheckWarn, "the local driver; it cannot bound a workspace, so the disk limit is not held", "configure volume_driver with one that takes a size"}
	}
	if !slices.Contains(info.Plugins.Volume, p.cfg.VolumeDriver) {
		return Check{"volumes", CheckFail, fmt.Sprintf("the engine does not have the volume driver %q; it has %s", p.cfg.VolumeDriver, strings.Join(info.Plugins.Volume, ", ")), "install the plugin, or configure another driver"}
	}
	return Check{Name: "volumes", Status: CheckOK, Detail: p.cfg.VolumeDriver}
}

func (p *Provider) checkAgent() Check {
	bin, err := p.agentBinary()
	if err != nil {
		return Check{"agent", CheckFail, err.Error(), ""}
	}
	return Check{Name: "agent", Status: CheckOK, Detail: fmt.Sprintf("%s (%.1f MiB)", bin.path, float64(bin.size)/(1<<20))}
}

func (p *Provider) checkDefaultImage(ctx context.Context) Check {
	err := p.checkImage(ctx, "", p.cfg.Image)
	switch {
	case err == nil:
		return Check{Name: "image", Status: CheckOK, Detail: p.cfg.Image}
	case !notFound(err):
		return Check{"image", CheckFail, err.Error(), "configure another image"}
	case p.cfg.Pull == PullNever:
		return Check{"image", CheckFail, p.cfg.Image + " is not on the engine, and pull is \"never\"", "load it, or configure another image"}
	}
	return Check{"image", CheckWarn, p.cfg.Image + " is not on the engine; it is pulled when it is first used", ""}
}

// checkRegistryConfig looks whether the credentials for pulls can be read. It
// asks no helper: that may want somebody to unlock a keyring.
func checkRegistryConfig() Check {
	file, err := dockerConfig()
	if err != nil {
		return Check{"registries", CheckWarn, err.Error(), "mend the file; until then images are pulled without credentials"}
	}
	helpers := map[string]bool{}
	for key := range file.CredentialHelpers {
		helpers[credentialHelper(file, key)] = true
	}
	helpers[credentialHelper(file, "")] = true
	delete(helpers, "")
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(helpers)) {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return Check{"registries", CheckWarn, fmt.Sprintf("%s names programs that are not on the PATH: %s", file.Filename, strings.Join(missing, ", ")),
			"install them, or take them out of credsStore and credHelpers; until then images of their registries are pulled without credentials"}
	}
	if !file.ContainsAuth() {
		return Check{Name: "registries", Status: CheckOK, Detail: "no credentials; public images need none"}
	}
	return Check{Name: "registries", Status: CheckOK, Detail: file.Filename}
}

func (p *Provider) checkAbandoned(ctx context.Context) Check {
	sandboxes, err := p.List(ctx)
	if err != nil {
		return Check{"sandboxes", CheckFail, err.Error(), ""}
	}
	orphans := 0
	for _, s := range sandboxes {
		if s.Owner.Known() && !s.OwnerAlive && !s.Keep && s.Expires.IsZero() {
			orphans++
		}
	}
	if orphans > 0 {
		return Check{"sandboxes", CheckWarn, fmt.Sprintf("%d, of which %d have lost their owner", len(sandboxes), orphans), "`capyrun gc` removes them"}
	}
	return Check{Name: "sandboxes", Status: CheckOK, Detail: fmt.Sprint(len(sandboxes))}
}

// checkSandbox does the main job once.
func (p *Provider) checkSandbox(ctx context.Context) Check {
	const fix = "the message says what the engine or the image lacks"
	begin := time.Now()
	sb, err := p.Create(ctx, provider.Spec{})
	if err != nil {
		return Check{"self-test", CheckFail, err.Error(), fix}
	}
	created := time.Since(begin)
	begin = time.Now()
	_, err = sb.Exec(ctx, provider.Command{Shell: "true", Timeout: 10 * time.Second})
	ran := time.Since(begin)
	if derr := sb.Destroy(context.WithoutCancel(ctx)); err == nil {
		err = derr
	}
	if err != nil {
		return Check{"self-test", CheckFail, err.Error(), fix}
	}
	return Check{Name: "self-test", Status: CheckOK, Detail: fmt.Sprintf("a sandbox was created in %d ms, ran a command in %.1f ms and was destroyed",
		created.Milliseconds(), float64(ran.Microseconds())/1000)}
}
