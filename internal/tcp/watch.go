package tcp

import "errors"

// ErrUnsupported is returned by WatchClose if the operating system or the connection does not
// support watches.
var ErrUnsupported = errors.New("the connection cannot be watched")
