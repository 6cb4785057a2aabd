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
			if readMetric(heapObjects)-base <= limit {
				continue
			}
			// Part of it may be garbage, which only a collection tells.
			runtime.GC()
			if readMetric(heapObjects)-base > limit {
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

const (
	heapObjects  = "/memory/classes/heap/objects:bytes" // garbage included
	heapSurvived = "/gc/heap/live:bytes"                // of the last collection
)

// liveHeap estimates what is on the heap without garbage. A collection would
// tell, but takes long where the heap is large.
func liveHeap() int64 {
	if n := readMetric(heapSurvived); n > 0 {
		return n
	}
	return readMetric(heapObjects) // there was no collection yet
}

func readMetric(name string) int64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
