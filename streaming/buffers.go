package streaming

import "sync"

// Most events fit a small buffer, and there is one per open stream; the large one holds what a small one cannot.
const (
	smallBuffer = 4 << 10
	largeBuffer = 64 << 10
)

var (
	smallBuffers = sync.Pool{New: func() any { return new([smallBuffer]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}
)

// borrow returns a buffer of smallBuffer or largeBuffer bytes. Its user gives it back, but not after a failed Write: the
// frame writer of an HTTP/2 connection may still be reading from it then.
func borrow(size int) []byte {
	if size <= smallBuffer {
		return smallBuffers.Get().(*[smallBuffer]byte)[:]
	}
	return largeBuffers.Get().(*[largeBuffer]byte)[:]
}

func giveBack(buf []byte) {
	if len(buf) == smallBuffer {
		smallBuffers.Put((*[smallBuffer]byte)(buf))
		return
	}
	largeBuffers.Put((*[largeBuffer]byte)(buf))
}

// enlarge moves what fills a small buffer to a large one, for the small one.
func enlarge(buf []byte) []byte {
	large := borrow(largeBuffer)
	copy(large, buf)
	giveBack(buf)
	return large
}
