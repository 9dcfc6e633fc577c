package prefixindex

import "unsafe"

// arena allocates values by index. An arena grows in chunks and never shrinks. The values contain
// no pointers, so the garbage collector does not scan them.
type arena[T any, P freeListed[T]] struct {
	chunks   []*[chunkLen]T
	used     uint32 // indices allocated at least once, including index 0, which means none
	freeList uint32 // the first free index used before; 0: none
}

// freeListed is a value with room for the index of the next free one.
type freeListed[T any] interface {
	*T
	nextFree() *uint32
}

const chunkLen = 1024

// bytes returns the memory taken by the arena.
func (a *arena[T, P]) bytes() int {
	var value T
	return len(a.chunks) * chunkLen * int(unsafe.Sizeof(value))
}

func (a *arena[T, P]) at(i uint32) P { return &a.chunks[i/chunkLen][i%chunkLen] }

// alloc returns a free index. The value there is not zeroed.
func (a *arena[T, P]) alloc() uint32 {
	if i := a.freeList; i != 0 {
		a.freeList = *a.at(i).nextFree()
		return i
	}
	a.used = max(a.used, 1)
	if int(a.used) >= chunkLen*len(a.chunks) {
		a.chunks = append(a.chunks, new([chunkLen]T))
	}
	a.used++
	return a.used - 1
}

func (a *arena[T, P]) free(i uint32) {
	*a.at(i).nextFree() = a.freeList
	a.freeList = i
}
