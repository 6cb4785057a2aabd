//go:build linux

package server

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// guardLimits forbids this thread, and so whatever it starts, to set the
// resource limits of another process. Commands have the agent's user id, and
// with that the kernel lets them: prlimit(2) on the first process could leave it
// without descriptors to look for processes with, when it is time to end them.
// The limits of a process of their own they can still set, as pid 0.
//
// Where the kernel has no filters nothing changes.
func guardLimits() {
	const x32 = 0x40000000
	type abi struct {
		arch     uint32
		prlimits []uint32
	}
	abis := map[string][]abi{
		"amd64": {
			{unix.AUDIT_ARCH_X86_64, []uint32{302, 302 | x32}},
			{unix.AUDIT_ARCH_I386, []uint32{340}},
		},
		"arm64": {
			{unix.AUDIT_ARCH_AARCH64, []uint32{261}},
			{unix.AUDIT_ARCH_ARM, []uint32{369}},
		},
	}[runtime.GOARCH]
	if abis == nil {
		return
	}
	// Offsets in struct seccomp_data, see seccomp(2): nr, arch, then eight bytes
	// an argument, the low half first on these machines.
	const (
		nr       = 0
		arch     = 4
		pid      = 16 + 0*8
		newLimit = 16 + 2*8
	)
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	// jump goes on after skipping as many instructions as yes or no say.
	jump := func(value uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: yes, Jf: no, K: value}
	}
	end := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	var filter []unix.SockFilter
	for _, a := range abis {
		for _, number := range a.prlimits {
			filter = append(filter,
				load(arch), jump(a.arch, 0, 9),
				load(nr), jump(number, 0, 7),
				load(pid), jump(0, 5, 0), // itself
				load(newLimit), jump(0, 0, 2),
				load(newLimit+4), jump(0, 1, 0), // asks only
				end(unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)),
			)
		}
	}
	filter = append(filter, end(unix.SECCOMP_RET_ALLOW))
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
	runtime.KeepAlive(filter)
}
