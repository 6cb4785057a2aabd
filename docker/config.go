package docker

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"strings"

	"github.com/capybara-hq/capyrun/provider"
)

// Defaults of a [Config].
const (
	DefaultEndpoint = "unix:///var/run/docker.sock"
	DefaultNetwork  = "capybara-sandbox"
	DefaultImage    = "debian:bookworm-slim"
	DefaultRuntime  = "runc"
)

// Pull says when an image is pulled.
type Pull string

const (
	PullMissing Pull = "missing" // when the engine does not have it
	PullAlways  Pull = "always"  // before every create
	PullNever   Pull = "never"   // a missing image is an error
)

// Config configures a [Provider]. The zero value works.
type Config struct {
	// Endpoint is the engine's address: unix:///path or tcp://host:port, an IPv6
	// host in brackets. Empty: DOCKER_HOST, else [DefaultEndpoint]. TLS is taken
	// from DOCKER_TLS_VERIFY and DOCKER_CERT_PATH. Docker contexts are not used.
	Endpoint string
	// Runtime is the OCI runtime as the engine knows it: "runc", "runsc" for
	// gVisor. Empty: [DefaultRuntime].
	//
	// gVisor lacks some of what the kernel tells. With release 20221219 (platform
	// ptrace, started with --network=none) sandboxes are created, found, suspended
	// and used by several runners, and commands, processes, files and connections
	// work, but:
	//   - [provider.Sandbox.Stats] are all zero;
	//   - the memory limit ends the whole sandbox, not the command that met it, and a
	//     fork bomb may do the same;
	//   - a sandbox with a limit of 64 processes does not start;
	//   - a terminal controls nothing: /dev/tty cannot be opened, and neither a typed
	//     Ctrl-C nor a change of its size reaches the command as a signal;
	//   - commands can read the first process's environment, which holds the spec's.
	Runtime string
	// Network is the prefix of the shared networks; it must match
	// ^cap[a-zA-Z0-9_.-]*$. Empty: [DefaultNetwork].
	Network string
	// Image is the image of a sandbox whose spec names none. Empty: [DefaultImage].
	Image string
	// Pull says when images are pulled. Empty: [PullMissing].
	Pull Pull
	// VolumeDriver is the driver of the workspace volumes. It must take the option
	// "size". Empty: the engine's local driver, which cannot bound a volume.
	VolumeDriver string
	// AllowOpenEgress permits [provider.EgressOpen]. An open sandbox reaches the
	// host's services, the local network and the cloud's metadata server.
	AllowOpenEgress bool
	// Labels are added to everything that is created.
	Labels map[string]string
	// AgentBinary is the path of a static capyrun binary for the engine's
	// platform. Empty: see [agent.FindBinary].
	AgentBinary string
}

var networkPattern = regexp.MustCompile(`^cap[a-zA-Z0-9_.-]*$`)

// withDefaults returns c with every empty field filled in, or the first field
// that cannot be accepted.
func (c Config) withDefaults() (Config, error) {
	if c.Endpoint == "" {
		c.Endpoint = os.Getenv("DOCKER_HOST")
	}
	if c.Endpoint == "" {
		c.Endpoint = DefaultEndpoint
	}
	c.Runtime = cmp.Or(c.Runtime, DefaultRuntime)
	c.Network = cmp.Or(c.Network, DefaultNetwork)
	c.Image = cmp.Or(c.Image, DefaultImage)
	c.Pull = cmp.Or(c.Pull, PullMissing)
	if err := checkEndpoint(c.Endpoint); err != nil {
		return c, err
	}
	if !networkPattern.MatchString(c.Network) {
		return c, &provider.InvalidError{Field: "network", Value: c.Network, Reason: "must match " + networkPattern.String()}
	}
	switch c.Pull {
	case PullMissing, PullAlways, PullNever:
	default:
		return c, &provider.InvalidError{Field: "pull", Value: string(c.Pull), Reason: `must be "missing", "always" or "never"`}
	}
	if err := (&provider.Spec{Image: c.Image}).Validate(); err != nil {
		return c, err
	}
	if err := checkReference(c.Image); err != nil {
		return c, err
	}
	return c, provider.CheckLabels(c.Labels)
}

// checkEndpoint accepts what the Docker client can speak to without a helper
// program. ssh:// would start one, and fd:// is for the daemon.
func checkEndpoint(endpoint string) error {
	bad := func(reason string) error {
		return &provider.InvalidError{Field: "endpoint", Value: endpoint, Reason: reason + "; use unix:///path or tcp://host:port"}
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return bad("is not an address")
	}
	switch u.Scheme {
	case "unix":
		if u.Host != "" || !strings.HasPrefix(u.Path, "/") || u.Path == "/" {
			return bad("names no absolute path of a socket")
		}
	case "tcp":
		host, port, err := net.SplitHostPort(u.Host)
		if err != nil || host == "" || port == "" {
			return bad("needs a host and a port")
		}
		if u.Path != "" || u.User != nil || u.RawQuery != "" {
			return bad("has more than a host and a port")
		}
	case "npipe":
		if runtime.GOOS != "windows" {
			return bad("named pipes are for Windows")
		}
	default:
		return bad(fmt.Sprintf("the scheme %q is not accepted", u.Scheme))
	}
	return nil
}
