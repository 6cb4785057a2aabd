package starlib

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"time"

	"github.com/capybara-hq/capyrun/starlib/script"
)

// heapInterval is how often the heap is looked at. A script can allocate about a
// gigabyte per second.
const heapInterval = 10 * time.Millisecond

// watchHeap calls stop once the process's live heap has grown by more than limit
// bytes. The returned function ends the watch.
//
// The interpreter cannot be told to count what it allocates, and a step can
// allocate a gigabyte.
func watchHeap(limit int64, stop func(error)) (end func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	base := liveHeap()
	go func() {
		defer close(ended)
		tick := time.NewTicker(heapInterval)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			if heapSize()-base <= limit {
				continue
			}
			// Part of it may be garbage, which only a collection tells.
			runtime.GC()
			if heapSize()-base > limit {
				stop(script.Limit(fmt.Sprintf("the script holds more than %d bytes of memory", limit)))
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}

// smallHeap is how much garbage may be taken for live objects at the start of a
// run, in bytes. It makes the limit that much laxer.
const smallHeap = 64 << 20

// liveHeap returns about what is on the heap without garbage. To know better it
// takes a collection, which is not worth its time where the heap is small.
func liveHeap() int64 {
	n := heapSize()
	if n > smallHeap {
		runtime.GC()
		n = heapSize()
	}
	return n
}

// heapSize returns the bytes of objects on the heap, garbage included.
func heapSize() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
