//go:build unix

package ingress

import "syscall"

// maxDescriptors returns the descriptor limit of this process, or 0 if it is unknown. It is the soft
// limit, which Go raises to the hard one when the process starts.
func maxDescriptors() uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return uint64(limit.Cur)
}
