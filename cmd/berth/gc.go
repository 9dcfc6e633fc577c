package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// Go's default GC percentage of 100 suits neither end: a small server doubles its few megabytes
// quickly and collects all the time, and one with thousands of streams holds twice the memory in
// use.
const (
	heapFloor  = 32 << 20 // heap size in bytes before the first collection
	heapGrowth = 20       // percent by which the heap may grow beyond the live heap
)

// tuneGC sets the GC percentage from the live heap, now and after each collection. GOGC in the
// environment takes precedence; GOMEMLIMIT holds either way. The hook after each collection is a
// finalizer on an unreachable object, which runs in the runtime's finalizer goroutine.
func tuneGC() {
	if os.Getenv("GOGC") != "" {
		return
	}
	var last int
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}}
	var adjust func(*[16]byte)
	adjust = func(*[16]byte) {
		metrics.Read(samples)
		percent := gcPercent(samples[0].Value.Uint64(), samples[1].Value.Uint64())
		if percent < last*9/10 || percent > last*11/10 { // SetGCPercent stops the world
			debug.SetGCPercent(percent)
			last = percent
		}
		runtime.SetFinalizer(new([16]byte), adjust)
	}
	adjust(nil)
}

// gcPercent returns the GC percentage for a live heap and stacks of these sizes in bytes: the heap
// may grow to heapFloor or by heapGrowth, whichever is more. Go applies the percentage to heap and
// stacks together.
func gcPercent(live, stacks uint64) int {
	if live >= heapFloor {
		return heapGrowth
	}
	return int(min(max(heapGrowth, 100*(heapFloor-live)/(live+stacks+1<<20)), 1000))
}
