package main

import (
	"bytes"
	"os"
	"runtime"
	"testing"
)

func TestTheHeapThatGrowsInHugePagesIsNoLarger(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	growInHugePages(64 << 20)
	runtime.ReadMemStats(&after)
	if after.HeapAlloc > before.HeapAlloc+16<<20 {
		t.Errorf("%d bytes are held, %d before", after.HeapAlloc, before.HeapAlloc)
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if _, none := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil || none != nil || !bytes.Contains(maps, []byte("VmFlags:")) {
		t.Skip("the system does not tell what was asked of it")
	}
	if !bytes.Contains(maps, []byte(" hg")) {
		t.Error("no memory is to be in huge pages")
	}
}
