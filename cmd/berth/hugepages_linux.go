package main

import (
	"runtime"
	"syscall"
)

// growInHugePages has the heap lie in huge pages as it grows by the next so many bytes, also where the system gives them
// only to those that ask, as most do. A process that is soon over pays for nearly every page that it uses, once: in pages
// of 4 KiB that is a fifth of a short replay. It is to be called before the heap is large.
func growInHugePages(bytes int) {
	ahead := make([]byte, bytes)                      // nobody writes to it, so it takes no memory
	_ = syscall.Madvise(ahead, syscall.MADV_HUGEPAGE) // a system that has none serves as well
	runtime.GC()                                      // what was asked for holds for the addresses, and these are free now
}
