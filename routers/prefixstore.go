package routers

import (
	"math"
	"unsafe"
)

// add makes a holding of the chain's mark at index k, which counts as used just before the one above it, that of the mark
// before; most recently if there is none.
func (x *prefixIndex) add(number uint32, blocks chain, k int, above uint32) uint32 {
	if x.byHash == nil {
		x.byHash, x.byHolder = make([]uint32, x.capacity+1), make([]uint32, x.capacity+1)
	}
	at := x.mark(blocks.mark(k))
	if at == 0 {
		parent := uint32(0)
		if above != 0 {
			parent = x.holdings.at(above).mark
		}
		at = x.addMark(blocks.mark(k), parent)
	}
	m := x.marks.at(at)
	head := &x.byHolder[slot(pair(at, number), x.byHolder)]
	i := x.holdings.take()
	*x.holdings.at(i) = holding{
		mark: at, holder: number, next: *head, right: m.first,
		since: x.turn, claims: 1, span: uint16(min(position(k+1)-position(k), math.MaxUint16)),
	}
	*head = i
	if m.first != 0 {
		x.holdings.at(m.first).left = i
	}
	m.first = i
	m.count++
	x.holders[number].blocks += int(x.holdings.at(i).span)
	x.size++
	x.use(i, above)
	return i
}

// drop removes a holding, and its mark if nobody else holds it.
func (x *prefixIndex) drop(i uint32) {
	h := x.holdings.at(i)
	m := x.marks.at(h.mark)
	x.unuse(i)
	if h.left != 0 {
		x.holdings.at(h.left).right = h.right
	} else {
		m.first = h.right
	}
	if h.right != 0 {
		x.holdings.at(h.right).left = h.left
	}
	link := &x.byHolder[slot(pair(h.mark, h.holder), x.byHolder)]
	for *link != i {
		link = &x.holdings.at(*link).next
	}
	*link = h.next
	x.holders[h.holder].blocks -= int(h.span)
	x.size--
	if m.count--; m.count == 0 {
		x.dropMark(h.mark)
	}
	x.holdings.give(i)
}

func (x *prefixIndex) addMark(hash uint64, parent uint32) (at uint32) {
	head := &x.byHash[slot(hash, x.byHash)]
	at = x.marks.take()
	*x.marks.at(at) = mark{hash: hash, next: *head, parent: parent}
	*head = at
	if parent != 0 {
		x.branch(parent, +1)
	}
	return at
}

func (x *prefixIndex) dropMark(i uint32) {
	m := x.marks.at(i)
	link := &x.byHash[slot(m.hash, x.byHash)]
	for *link != i {
		link = &x.marks.at(*link).next
	}
	*link = m.next
	if m.parent != 0 {
		x.branch(m.parent, -1)
	}
	x.marks.give(i)
}

// branch counts a mark that comes or goes below another one. That is an end less or more for all above too, but where
// it takes the place of an end, or gives it back.
func (x *prefixIndex) branch(i uint32, change int32) {
	for range maxMarks {
		m := x.marks.at(i)
		before := m.branches
		m.branches += uint32(change)
		if i = m.parent; i == 0 || before == 0 || m.branches == 0 {
			return
		}
	}
}

// use puts a holding into its holder's list, one older than above or, where
// that is none, as the newest.
func (x *prefixIndex) use(i, above uint32) {
	h := x.holdings.at(i)
	owner := &x.holders[h.holder]
	h.newer = above
	if above != 0 {
		a := x.holdings.at(above)
		h.older, a.older = a.older, i
	} else {
		h.older, owner.newest = owner.newest, i
	}
	if h.older != 0 {
		x.holdings.at(h.older).newer = i
	} else {
		owner.oldest = i
	}
}

// unuse takes a holding out of its holder's list.
func (x *prefixIndex) unuse(i uint32) {
	h := x.holdings.at(i)
	owner := &x.holders[h.holder]
	if h.newer != 0 {
		x.holdings.at(h.newer).older = h.older
	} else {
		owner.newest = h.older
	}
	if h.older != 0 {
		x.holdings.at(h.older).newer = h.newer
	} else {
		owner.oldest = h.newer
	}
}

// arena hands out places for values, by index; it grows in chunks and does not
// shrink. Nothing in it is a pointer, so the garbage collector passes it by.
type arena[T any, P link[T]] struct {
	chunks [][]T
	used   uint32 // places handed out at least once, and place 0, which is none
	free   uint32 // the list of those given back
}

// link is a value with room for an index, by which those given back are listed.
type link[T any] interface {
	*T
	link() *uint32
}

func (m *mark) link() *uint32    { return &m.next }
func (h *holding) link() *uint32 { return &h.next }

const arenaChunk = 1024

// bytes is the memory that the index has taken, but for a few words per replica.
func (x *prefixIndex) bytes() int {
	return x.marks.bytes() + x.holdings.bytes() + 4*(len(x.byHash)+len(x.byHolder))
}

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
		a.chunks = append(a.chunks, make([]T, arenaChunk))
	}
	a.used++
	return a.used - 1
}

func (a *arena[T, P]) give(i uint32) {
	*a.at(i).link() = a.free
	a.free = i
}
