//go:build !linux

package http1

// quiet assumes so: what it could have told comes out at the next write or read.
func quiet(uintptr) bool { return true }
