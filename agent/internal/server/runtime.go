//go:build linux

package server

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// settleRuntime makes the Go runtime fit for a small sandbox: a small heap, and
// all the threads that it will need. A Go program that cannot make a thread
// dies, and a fork bomb takes the last one.
func settleRuntime() {
	debug.SetGCPercent(50)
	limit := pidsLimit()
	processors := 4
	if limit > 0 && limit < 64 {
		processors = 1 // each may need several threads
	}
	// Setting it also ends the runtime's regular look at the processor limit.
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), processors))

	threads := 20
	if limit > 0 {
		threads = min(threads, max(int(limit)/8, 6))
	}
	var locked, released sync.WaitGroup
	locked.Add(threads)
	for range threads {
		released.Go(func() {
			// A goroutine that is locked to its thread shares it with no other. The
			// runtime keeps the threads for later use.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			locked.Done()
			locked.Wait()
		})
	}
	released.Wait()
	slots = make(chan struct{}, min(threads/3, 8))
	dropUnusedCode()
}

// dropUnusedCode gives back the pages of the binary that only the start has
// touched. The agent is one part of a larger program, whose packages all
// initialise; they are most of what an agent at rest would hold. What is used
// again comes back from the page cache, which all sandboxes share.
func dropUnusedCode() {
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	var start, end uint64
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		switch {
		case len(f) >= 5 && strings.Contains(f[0], "-"):
			start, end = 0, 0
			if len(f) < 6 || f[5] != self || strings.Contains(f[1], "w") {
				continue // not the binary's, or written to
			}
			from, to, _ := strings.Cut(f[0], "-")
			start, _ = strconv.ParseUint(from, 16, 64)
			end, _ = strconv.ParseUint(to, 16, 64)
		case len(f) >= 2 && f[0] == "Anonymous:" && f[1] == "0" && end > start:
			// Nothing in it differs from the file, as relocated pages do.
			unix.Syscall(unix.SYS_MADVISE, uintptr(start), uintptr(end-start), unix.MADV_DONTNEED)
		}
	}
}
