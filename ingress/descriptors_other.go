//go:build !unix

package ingress

// maxDescriptors returns zero: the limit is unknown.
func maxDescriptors() uint64 { return 0 }
