package main

import (
	"runtime"
	"syscall"
)

// growInHugePages asks the kernel for huge pages for the next bytes by which the heap grows. Most
// systems give them only on request. A short-lived process touches nearly every page once, so page
// faults of 4 KiB are a large part of its time. growInHugePages must be called while the heap is
// small.
func growInHugePages(bytes int) {
	ahead := make([]byte, bytes)                      // never written: takes no memory
	_ = syscall.Madvise(ahead, syscall.MADV_HUGEPAGE) // huge pages are optional
	runtime.GC()                                      // frees the addresses, which keep the advice
}
