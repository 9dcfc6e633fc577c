package body

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
)

// A Budget bounds the memory of all request bodies together, in bytes. Its methods may be called
// concurrently.
type Budget struct {
	limit atomic.Int64
	held  atomic.Int64
}

// NewBudget returns a budget of limit bytes.
func NewBudget(limit int64) *Budget {
	b := new(Budget)
	b.limit.Store(limit)
	return b
}

// Limit returns the limit in bytes.
func (b *Budget) Limit() int64 { return b.limit.Load() }

// SetLimit changes the limit. A lower one takes no memory from existing bodies; new ones are
// refused until enough memory has been released.
func (b *Budget) SetLimit(limit int64) { b.limit.Store(limit) }

// Held returns the memory of all request bodies in bytes.
func (b *Budget) Held() int64 { return b.held.Load() }

// reserve adds n bytes to those held, and reports false if they do not fit.
func (b *Budget) reserve(n int) bool {
	for {
		held := b.held.Load()
		if int64(n) > b.limit.Load()-held {
			return false
		}
		if b.held.CompareAndSwap(held, held+int64(n)) {
			return true
		}
	}
}

// belowHalf reports whether at most half of the budget is in use.
func (b *Budget) belowHalf() bool { return b.held.Load() <= b.limit.Load()/2 }

func (b *Budget) release(n int) {
	if held := b.held.Add(-int64(n)); held < 0 {
		panic(fmt.Sprintf("BUG: the body budget holds %d bytes", held))
	}
}

// The sizes of buffers are powers of two from 4 KiB to 4 MiB, and such buffers are pooled. Larger
// ones are rare: they are allocated in the exact size and left to the garbage collector, because a
// pool would keep them for long.
const (
	minBufferBits = 12
	maxBufferBits = 22
)

var buffers [maxBufferBits + 1]sync.Pool // of *[]byte, indexed by the binary logarithm of their size

// bufferBits returns the binary logarithm of the smallest power of two not below n or 4 KiB. n must
// be positive.
func bufferBits(n int) int { return max(bits.Len(uint(n-1)), minBufferBits) }

// bufferSize returns the size of the buffer returned by getBuffer(n).
func bufferSize(n int) int {
	if class := bufferBits(n); class <= maxBufferBits {
		return 1 << class
	}
	return n
}

// getBuffer returns a buffer for n > 0 bytes, with arbitrary content.
func getBuffer(n int) *[]byte {
	if class := bufferBits(n); class <= maxBufferBits {
		if buffer, ok := buffers[class].Get().(*[]byte); ok {
			return buffer
		}
	}
	buffer := make([]byte, bufferSize(n))
	return &buffer
}

// putBuffer returns a buffer to its pool. The buffer must not be used afterwards.
func putBuffer(buffer *[]byte) {
	if class := bufferBits(len(*buffer)); class <= maxBufferBits {
		buffers[class].Put(buffer)
	}
}
