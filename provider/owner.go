package provider

import (
	"bytes"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"sync"
)

// Owner identifies the process that created a sandbox, across reboots and
// process id reuse. The fields are ASCII.
type Owner struct {
	Host  string `json:"host"`            // host name
	Boot  string `json:"boot,omitempty"`  // Linux boot id
	PIDNS string `json:"pidns,omitempty"` // Linux process id namespace
	PID   int    `json:"pid"`
	Start uint64 `json:"start,omitempty"` // start time in clock ticks since boot
}

// Self returns the owner that stands for this process.
var Self = sync.OnceValue(func() Owner {
	o := Owner{PID: os.Getpid()}
	o.Host, _ = os.Hostname()
	if id, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		o.Boot = strings.TrimSpace(string(id))
	}
	o.PIDNS, _ = os.Readlink("/proc/self/ns/pid")
	o.Start, _ = startTime(o.PID)
	return o
})

// Label is the owner as the value of [LabelOwner].
func (o Owner) Label() string {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return string(b)
}

// ParseOwner reads a [LabelOwner]; what cannot be read is the zero Owner.
func ParseOwner(label string) Owner {
	var o Owner
	if json.Unmarshal([]byte(label), &o) != nil {
		return Owner{}
	}
	return o
}

// Known reports whether this process can tell if the owner lives: it runs on
// the same boot of the same host and in the same process id namespace.
func (o Owner) Known() bool {
	self := Self()
	return o.PID > 0 && o.Host == self.Host && o.Boot == self.Boot && o.PIDNS == self.PIDNS
}

// Alive reports whether the owner's process exists. It is only meaningful
// where [Owner.Known] holds.
func (o Owner) Alive() bool {
	start, ok := startTime(o.PID)
	return ok && start == o.Start
}

// startTime reads field 22 of proc_pid_stat(5). The second field, the command
// name, may hold spaces and parentheses, so the fields are counted from the
// last closing one. A zombie counts as dead.
func startTime(pid int) (uint64, bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0, false
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return start, err == nil
}
