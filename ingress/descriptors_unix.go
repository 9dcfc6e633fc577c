//go:build unix

package ingress

import "syscall"

// maxDescriptors returns the descriptor limit of this process, or 0 if unknown: the soft limit,
// raised to the hard one by Go at the start of the process.
func maxDescriptors() uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return uint64(limit.Cur)
}
