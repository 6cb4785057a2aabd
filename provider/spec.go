package provider

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"
)

// Egress says what a sandbox can reach over the network.
type Egress string

const (
	// EgressNone has no network but the loopback. It is the default.
	EgressNone Egress = "none"
	// EgressAllowlist reaches the hosts of [Spec.AllowHosts] and nothing else.
	EgressAllowlist Egress = "allowlist"
	// EgressOpen reaches whatever the engine's host can reach.
	EgressOpen Egress = "open"
)

// Defaults of a [Spec] and a [Command].
const (
	DefaultCPU       = 1.0
	DefaultMemory    = int64(1 << 30)
	DefaultPIDs      = int64(1024)
	DefaultMaxOutput = int64(1 << 20)
	DefaultMaxRead   = int64(16 << 20)
)

// Lowest and highest values that a [Spec] accepts. The memory floor is what the
// agent and a shell need; the engine may refuse more than its host has.
const (
	MinCPU    = 0.01
	MaxCPU    = 1024
	MinMemory = int64(32 << 20)
	MaxMemory = int64(1) << 46
	MinDisk   = int64(1 << 20)
	MaxDisk   = int64(1) << 50
	MinPIDs   = int64(32)
	MaxPIDs   = int64(1 << 22)
)

// Spec describes a sandbox to create. The zero value is a sandbox of the
// provider's default image, without network, with a generated name.
type Spec struct {
	// Name is the sandbox's name, see [CheckName]. Empty: one is generated.
	Name string
	// Image is an image reference. Empty: the provider's default.
	Image string
	// CPU is the number of processors, fractions allowed. 0: [DefaultCPU].
	CPU float64
	// Memory is the limit in bytes; there is no swap beside it. 0: [DefaultMemory].
	Memory int64
	// Disk is the size of /workspace in bytes. 0: no limit.
	Disk int64
	// PIDs bounds the number of processes and threads, some twelve of which are
	// the agent's. 0: [DefaultPIDs].
	PIDs int64
	// Egress is the network mode. Empty: [EgressNone].
	Egress Egress
	// AllowHosts are the hosts that [EgressAllowlist] lets through.
	AllowHosts []string
	// Env is the environment of every command. It overrides the image's.
	Env map[string]string
	// Labels are the user's own; keys under [LabelPrefix] are refused.
	Labels map[string]string
	// TTL ends the sandbox that long after its creation, and lets it outlive its
	// owner until then. 0: it ends with its owner.
	TTL time.Duration
	// Keep lets the sandbox outlive its owner until it is destroyed by name, or
	// until TTL where that is set.
	Keep bool
	// Replace destroys a sandbox of ours of the same name first.
	Replace bool
}

// WithDefaults fills in the fields for which this package has a default.
func (s Spec) WithDefaults() Spec {
	s.CPU = cmp.Or(s.CPU, DefaultCPU)
	s.Memory = cmp.Or(s.Memory, DefaultMemory)
	s.PIDs = cmp.Or(s.PIDs, DefaultPIDs)
	s.Egress = cmp.Or(s.Egress, EgressNone)
	return s
}

// Validate reports the first field that cannot be accepted, as an
// [*InvalidError]. It needs no engine.
func (s *Spec) Validate() error {
	if s.Name != "" {
		if err := CheckName(s.Name); err != nil {
			return err
		}
	}
	if err := checkASCII("image", s.Image, "image references are ASCII"); err != nil {
		return err
	}
	if strings.ContainsAny(s.Image, " \t\r\n\x00") {
		return &InvalidError{Field: "image", Value: s.Image, Reason: "must not contain white space"}
	}
	if s.CPU != 0 && (math.IsNaN(s.CPU) || s.CPU < MinCPU || s.CPU > MaxCPU) {
		return &InvalidError{Field: "cpu", Value: fmt.Sprint(s.CPU), Reason: fmt.Sprintf("must be from %v to %v processors", MinCPU, MaxCPU)}
	}
	for _, size := range []struct {
		field         string
		val, min, max int64
		unit          string
	}{
		{"memory", s.Memory, MinMemory, MaxMemory, "bytes"},
		{"disk", s.Disk, MinDisk, MaxDisk, "bytes"},
		{"pids", s.PIDs, MinPIDs, MaxPIDs, "processes"},
	} {
		if size.val != 0 && (size.val < size.min || size.val > size.max) {
			return &InvalidError{Field: size.field, Value: fmt.Sprint(size.val), Reason: fmt.Sprintf("must be from %d to %d %s", size.min, size.max, size.unit)}
		}
	}
	switch s.Egress {
	case "", EgressNone, EgressOpen:
		if len(s.AllowHosts) > 0 {
			return &InvalidError{Field: "allow_hosts", Value: strings.Join(s.AllowHosts, ","), Reason: `needs egress "allowlist"`}
		}
	case EgressAllowlist:
	default:
		return &InvalidError{Field: "egress", Value: string(s.Egress), Reason: `must be "none", "allowlist" or "open"`}
	}
	if err := CheckEnv(s.Env); err != nil {
		return err
	}
	if err := CheckLabels(s.Labels); err != nil {
		return err
	}
	if s.TTL < 0 || s.TTL > 0 && s.TTL < time.Second {
		return &InvalidError{Field: "ttl", Value: s.TTL.String(), Reason: "must be one second or more"}
	}
	return nil
}

// State is where a sandbox stands.
type State string

const (
	StateCreated   State = "created"   // never started: being created, or left by a create that died
	StateRunning   State = "running"   // takes commands
	StatePaused    State = "paused"    // frozen by the engine; resumes at the next operation
	StateSuspended State = "suspended" // stopped, files kept; resumes at the next operation
	StateDead      State = "dead"      // ended by itself; the next operation starts it again
)

// Info describes an existing sandbox.
type Info struct {
	Name       string            `json:"name"`
	ID         string            `json:"id"` // the engine's id
	Image      string            `json:"image"`
	State      State             `json:"state"`
	Created    time.Time         `json:"created"`
	Owner      Owner             `json:"owner"`
	OwnerAlive bool              `json:"owner_alive"`
	Egress     Egress            `json:"egress"`
	AllowHosts []string          `json:"allow_hosts,omitempty"`
	Keep       bool              `json:"keep,omitempty"`
	Expires    time.Time         `json:"expires,omitzero"` // zero: no time to live
	Labels     map[string]string `json:"labels,omitempty"` // the user's own
}

// Stats is what a sandbox uses. Zero limits are unlimited; a zero peak is one
// that the kernel does not report.
type Stats struct {
	CPUTime     time.Duration `json:"cpu_time_ns"` // since the sandbox started
	CPUPercent  float64       `json:"cpu_percent"` // of one processor, over the last moments
	Memory      int64         `json:"memory"`      // bytes, page cache that can be dropped not counted
	MemoryPeak  int64         `json:"memory_peak"` // bytes
	MemoryLimit int64         `json:"memory_limit"`
	PIDs        int64         `json:"pids"`
	PIDsPeak    int64         `json:"pids_peak"`
	PIDsLimit   int64         `json:"pids_limit"`
	OOMKills    int64         `json:"oom_kills"` // processes that the kernel ended for want of memory
}

// SweepReport says what a sweep removed, as the names of the resources.
type SweepReport struct {
	Sandboxes []string `json:"sandboxes"` // containers
	Networks  []string `json:"networks"`
	Volumes   []string `json:"volumes"`
}

// Empty reports whether nothing was removed.
func (r SweepReport) Empty() bool {
	return len(r.Sandboxes)+len(r.Networks)+len(r.Volumes) == 0
}
