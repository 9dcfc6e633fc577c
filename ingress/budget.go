package ingress

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
)

// A budget bounds the bytes that all request bodies hold at once. The limit may change at any time; a lower one takes
// nothing back, it admits nothing new until enough has been released.
type budget struct {
	limit atomic.Int64
	held  atomic.Int64
}

func newBudget(limit int64) *budget {
	b := new(budget)
	b.limit.Store(limit)
	return b
}

// reserve takes n bytes, or none and reports false.
func (b *budget) reserve(n int) bool {
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

// ample tells whether half of the budget is free.
func (b *budget) ample() bool { return b.held.Load() <= b.limit.Load()/2 }

func (b *budget) release(n int) {
	if held := b.held.Add(-int64(n)); held < 0 {
		panic(fmt.Sprintf("BUG: the body budget holds %d bytes", held))
	}
}

// Buffers come in powers of two from 4 KiB, and up to 4 MiB they are pooled. Larger ones are rare, made to measure, and
// left to the garbage collector: a pool would keep them for long.
const (
	minBufferBits = 12
	maxBufferBits = 22
)

var buffers [maxBufferBits + 1]sync.Pool // of *[]byte, by the logarithm of their size

// bufferBits returns the logarithm of the smallest power of two that holds n > 0 bytes.
func bufferBits(n int) int { return max(bits.Len(uint(n-1)), minBufferBits) }

// bufferSize returns the size of the buffer that getBuffer(n) returns.
func bufferSize(n int) int {
	if class := bufferBits(n); class <= maxBufferBits {
		return 1 << class
	}
	return n
}

// getBuffer returns a buffer for n > 0 bytes, with any content.
func getBuffer(n int) *[]byte {
	if class := bufferBits(n); class <= maxBufferBits {
		if buffer, ok := buffers[class].Get().(*[]byte); ok {
			return buffer
		}
	}
	buffer := make([]byte, bufferSize(n))
	return &buffer
}

// putBuffer takes a buffer back. Nothing may use it any more.
func putBuffer(buffer *[]byte) {
	if class := bufferBits(len(*buffer)); class <= maxBufferBits {
		buffers[class].Put(buffer)
	}
}
