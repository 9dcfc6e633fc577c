package main

import (
	"bytes"
	"os"
	"runtime"
	"testing"
)

func TestReplayGrowInHugePagesKeepsTheHeapSmall(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	growInHugePages(64 << 20)
	runtime.ReadMemStats(&after)
	if after.HeapAlloc > before.HeapAlloc+16<<20 {
		t.Errorf("%d bytes are allocated, %d before", after.HeapAlloc, before.HeapAlloc)
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if _, none := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil || none != nil || !bytes.Contains(maps, []byte("VmFlags:")) {
		t.Skip("the system does not report the advice on memory")
	}
	if !bytes.Contains(maps, []byte(" hg")) {
		t.Error("no memory has the advice for huge pages")
	}
}
