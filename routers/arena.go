package routers

import "unsafe"

// arena hands out places for values, by index; it grows in chunks and does not
// shrink. Nothing in it is a pointer, so the garbage collector passes it by.
type arena[T any, P link[T]] struct {
	chunks []*[arenaChunk]T
	used   uint32 // places handed out at least once, and place 0, which is none
	free   uint32 // the list of those given back
}

// link is a value with room for an index, by which those given back are listed.
type link[T any] interface {
	*T
	link() *uint32
}

const arenaChunk = 1024

func (a *arena[T, P]) bytes() int {
	var value T
	return len(a.chunks) * arenaChunk * int(unsafe.Sizeof(value))
}

func (a *arena[T, P]) at(i uint32) P { return &a.chunks[i/arenaChunk][i%arenaChunk] }

func (a *arena[T, P]) take() uint32 {
	if i := a.free; i != 0 {
		a.free = *a.at(i).link()
		return i
	}
	a.used = max(a.used, 1)
	if int(a.used) >= arenaChunk*len(a.chunks) {
		a.chunks = append(a.chunks, new([arenaChunk]T))
	}
	a.used++
	return a.used - 1
}

func (a *arena[T, P]) give(i uint32) {
	*a.at(i).link() = a.free
	a.free = i
}
