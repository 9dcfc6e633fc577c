package tcp

import "errors"

// ErrUnsupported is returned by WatchClose where the system or the connection offers no watches.
var ErrUnsupported = errors.New("the connection cannot be watched")
