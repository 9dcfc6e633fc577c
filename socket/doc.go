// Package socket reads and writes TCP connections by system calls of which the scheduler is not told.
//
// Go tells its scheduler before and after each system call, so that somebody else may have the processor if the call
// takes long. What that costs is more than the telling: the first call after all had been idle wakes the runtime's
// monitor, a thread that finds nothing to do, looks again some times and goes back to sleep. Where events come one by one
// that happens with each of them, at two switches of threads. A call on a socket that never waits takes no longer than
// many a function, so it may go without.
//
// What is read and written is what package net would read and write, by the same poller, deadlines and errors. Elsewhere
// than on Linux it is package net that does it.
//
// It also holds what every connection of the project has in common: how it listens and dials, when a peer that is silent
// or reads nothing is given up, and which errors are this process's own want of descriptors, ports or memory.
package socket
