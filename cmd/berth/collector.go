package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// The collector's pace. Go's default lets the heap grow by as much as is in use, so that a small server, whose few
// megabytes are soon doubled, collects all the time, and one with thousands of streams holds twice what it needs.
const (
	// heapFloor is what the heap may grow to before anything is collected.
	heapFloor = 32 << 20
	// heapGrowth is by how much of what is in use it may grow beyond that, in percent.
	heapGrowth = 20
)

// paceCollector has the collector go by these, unless GOGC says otherwise. GOMEMLIMIT holds either way. After each
// collection the percentage is set anew, by a finalizer of an object that nobody refers to.
func paceCollector() {
	if os.Getenv("GOGC") != "" {
		return
	}
	var last int
	read := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}}
	var adjust func(*[16]byte)
	adjust = func(*[16]byte) {
		metrics.Read(read)
		percent := collectorPercent(read[0].Value.Uint64(), read[1].Value.Uint64())
		if percent < last*9/10 || percent > last*11/10 { // to set it stops the world for some microseconds
			debug.SetGCPercent(percent)
			last = percent
		}
		runtime.SetFinalizer(new([16]byte), adjust)
	}
	adjust(nil)
}

// collectorPercent is the percentage by which a heap of that many bytes in use ends at the floor or, if
// that is more, has grown by heapGrowth. Go counts the stacks as in use, too.
func collectorPercent(live, stacks uint64) int {
	if live >= heapFloor {
		return heapGrowth
	}
	return int(min(max(heapGrowth, 100*(heapFloor-live)/(live+stacks+1<<20)), 1000))
}
