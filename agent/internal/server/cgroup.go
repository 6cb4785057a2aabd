//go:build linux

package server

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/provider"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroupFile returns the path of one of this process's control group files.
// controller is that of version 1; empty stands for version 2. In a container
// the group is mounted as the root, whatever /proc/self/cgroup calls it.
func cgroupFile(controller, name string) string {
	root := cgroupRoot
	if controller != "" {
		root = path.Join(cgroupRoot, controller)
	}
	own := path.Join(root, cgroupPath(controller), name)
	if _, err := os.Stat(own); err == nil {
		return own
	}
	return path.Join(root, name)
}

var selfCgroup = sync.OnceValue(func() []byte {
	b, _ := os.ReadFile("/proc/self/cgroup")
	return b
})

func cgroupPath(controller string) string {
	s := bufio.NewScanner(bytes.NewReader(selfCgroup()))
	for s.Scan() {
		f := strings.SplitN(s.Text(), ":", 3)
		if len(f) != 3 {
			continue
		}
		if controller == "" && f[1] == "" {
			return f[2]
		}
		for name := range strings.SplitSeq(f[1], ",") {
			if name == controller && controller != "" {
				return f[2]
			}
		}
	}
	return "/"
}

// unified reports whether the system uses version 2.
var unified = sync.OnceValue(func() bool {
	_, err := os.Stat(cgroupRoot + "/cgroup.controllers")
	return err == nil
})

// cgroupNumber reads a file with one number; "max" and what cannot be read
// are 0.
func cgroupNumber(file string) int64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// cgroupField reads the line "name number" of a file.
func cgroupField(b []byte, name string) int64 {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) == 2 && string(f[0]) == name {
			n, _ := strconv.ParseInt(string(f[1]), 10, 64)
			return n
		}
	}
	return 0
}

// unlimited is above every limit that means one: version 1 has no "max", but a
// number near the largest.
const unlimited = int64(1) << 60

func limited(n int64) int64 {
	if n >= unlimited || n < 0 {
		return 0
	}
	return n
}

// memoryLimit is the sandbox's limit in bytes, 0 for none.
func memoryLimit() int64 {
	if unified() {
		return limited(cgroupNumber(cgroupFile("", "memory.max")))
	}
	return limited(cgroupNumber(cgroupFile("memory", "memory.limit_in_bytes")))
}

// pidsLimit is the sandbox's limit on processes and threads, 0 for none.
func pidsLimit() int64 {
	controller := "pids"
	if unified() {
		controller = ""
	}
	return limited(cgroupNumber(cgroupFile(controller, "pids.max")))
}

func cpuTime() time.Duration {
	if unified() {
		b, _ := os.ReadFile(cgroupFile("", "cpu.stat"))
		return time.Duration(cgroupField(b, "usage_usec")) * time.Microsecond
	}
	return time.Duration(cgroupNumber(cgroupFile("cpuacct", "cpuacct.usage")))
}

// cpuSample is over what the present use of the processor is measured.
const cpuSample = 100 * time.Millisecond

func (c *call) stats(ctx context.Context) *wire.Response {
	before, start := cpuTime(), time.Now()
	select {
	case <-time.After(cpuSample):
	case <-ctx.Done():
		return failure(context.Cause(ctx))
	}
	s := &provider.Stats{CPUTime: cpuTime()}
	s.CPUPercent = 100 * float64(s.CPUTime-before) / float64(time.Since(start))
	s.OOMKills = c.session.server.cmds.oomKills.read()
	s.MemoryLimit, s.PIDsLimit = memoryLimit(), pidsLimit()
	if unified() {
		stat, _ := os.ReadFile(cgroupFile("", "memory.stat"))
		s.Memory = cgroupNumber(cgroupFile("", "memory.current")) - cgroupField(stat, "inactive_file")
		s.MemoryPeak = cgroupNumber(cgroupFile("", "memory.peak"))
		s.PIDs, s.PIDsPeak = cgroupNumber(cgroupFile("", "pids.current")), cgroupNumber(cgroupFile("", "pids.peak"))
	} else {
		stat, _ := os.ReadFile(cgroupFile("memory", "memory.stat"))
		s.Memory = cgroupNumber(cgroupFile("memory", "memory.usage_in_bytes")) - cgroupField(stat, "total_inactive_file")
		s.MemoryPeak = cgroupNumber(cgroupFile("memory", "memory.max_usage_in_bytes"))
		s.PIDs, s.PIDsPeak = cgroupNumber(cgroupFile("pids", "pids.current")), cgroupNumber(cgroupFile("pids", "pids.peak"))
	}
	s.Memory = max(s.Memory, 0)
	return &wire.Response{Stats: s}
}

// oomCounter reads how many processes of the sandbox the kernel has killed for
// want of memory. It is read around every command, so its file stays open.
type oomCounter struct{ file *os.File }

func openOOMCounter() *oomCounter {
	name := cgroupFile("memory", "memory.oom_control")
	if unified() {
		name = cgroupFile("", "memory.events")
	}
	f, err := os.Open(name)
	if err != nil {
		return &oomCounter{} // none: no command is ever said to have run out of memory
	}
	return &oomCounter{f}
}

func (o *oomCounter) read() int64 {
	if o.file == nil {
		return 0
	}
	var b [512]byte
	n, err := syscall.Pread(int(o.file.Fd()), b[:], 0)
	if err != nil {
		return 0
	}
	return cgroupField(b[:n], "oom_kill")
}
