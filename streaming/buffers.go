package streaming

import "sync"

// Most events fit a small buffer, of which each open stream holds one. A stream moves to a large
// one when an event does not fit.
const (
	smallBuffer = 4 << 10
	largeBuffer = 64 << 10
)

var (
	smallBuffers = sync.Pool{New: func() any { return new([smallBuffer]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}
)

// getBuffer returns a buffer of smallBuffer or largeBuffer bytes, at least size if size is at most
// largeBuffer. The caller returns the buffer by putBuffer, except after a failed Write: the frame
// writer of an HTTP/2 connection may still be reading from the buffer.
func getBuffer(size int) []byte {
	if size <= smallBuffer {
		return smallBuffers.Get().(*[smallBuffer]byte)[:]
	}
	return largeBuffers.Get().(*[largeBuffer]byte)[:]
}

// putBuffer returns a buffer to the pool of its size.
func putBuffer(buf []byte) {
	if len(buf) == smallBuffer {
		smallBuffers.Put((*[smallBuffer]byte)(buf))
		return
	}
	largeBuffers.Put((*[largeBuffer]byte)(buf))
}

// growBuffer exchanges a full small buffer for a large one with the same content.
func growBuffer(buf []byte) []byte {
	large := getBuffer(largeBuffer)
	copy(large, buf)
	putBuffer(buf)
	return large
}
