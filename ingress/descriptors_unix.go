//go:build unix

package ingress

import "syscall"

// maxDescriptors returns how many descriptors this process may have open: the soft limit, which Go
// raises to the hard one when the process starts. Zero is unknown.
func maxDescriptors() uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return uint64(limit.Cur)
}
