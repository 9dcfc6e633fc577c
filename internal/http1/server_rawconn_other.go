//go:build !linux

package http1

import "errors"

// Connections cannot be watched here, so none is served but by net/http.

func readFD(uintptr, []byte) (int, error)  { return 0, errors.ErrUnsupported }
func writeFD(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }
