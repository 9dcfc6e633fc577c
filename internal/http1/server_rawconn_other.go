//go:build !linux

package http1

import "errors"

// Disconnects cannot be watched for on this platform, so all connections are served by net/http and
// these are not called.

func readFD(uintptr, []byte) (int, error)  { return 0, errors.ErrUnsupported }
func writeFD(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }
