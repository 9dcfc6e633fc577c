package routers

import (
	"math"
	"math/bits"
	"unsafe"
)

// add makes a holding of the chain's mark at index k, which counts as used just before the one above it, that of the mark
// before; most recently if there is none.
func (x *prefixIndex) add(number uint32, blocks chain, k int, above uint32) uint32 {
	if x.byHash == nil {
		x.byHash, x.byHolder = make([]uint32, x.capacity+1), make([]uint32, x.capacity+1)
	}
	parent := uint32(0)
	if above != 0 {
		parent = x.holdings.at(above).mark
	}
	at := x.after(parent, blocks.mark(k))
	if at == 0 {
		at = x.addMark(blocks.mark(k), parent)
	}
	m := x.marks.at(at)
	head := x.heldBy(at, number)
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
	link := x.heldBy(h.mark, h.holder)
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
		x.marks.at(parent).child = at
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

// mark finds a mark by its hash.
func (x *prefixIndex) mark(hash uint64) uint32 {
	if x.byHash == nil {
		return 0
	}
	i := x.byHash[slot(hash, x.byHash)]
	for i != 0 {
		m := x.marks.at(i)
		if m.hash == hash {
			break
		}
		i = m.next
	}
	return i
}

// after finds the mark with a hash that follows another one in its chain, or begins it if that is none. What was found there
// the last time is looked at first, and is nearly always it; where nothing ever was, there is nothing.
func (x *prefixIndex) after(parent uint32, hash uint64) uint32 {
	if parent == 0 {
		return x.mark(hash)
	}
	p := x.marks.at(parent)
	if p.child == 0 {
		return 0
	}
	if m := x.marks.at(p.child); m.hash == hash && m.count > 0 {
		return p.child
	}
	i := x.mark(hash)
	if i != 0 {
		p.child = i
	}
	return i
}

// holding finds a mark at a replica.
func (x *prefixIndex) holding(mark, number uint32) uint32 {
	if mark == 0 {
		return 0
	}
	i := *x.heldBy(mark, number)
	for i != 0 {
		h := x.holdings.at(i)
		if h.mark == mark && h.holder == number {
			break
		}
		i = h.next
	}
	return i
}

// heldBy is the list in which a mark at a replica is, if it is held there. The marks of a chain mostly have numbers in
// sequence, and what a replica holds of them is in one line of the processor's cache.
func (x *prefixIndex) heldBy(mark, number uint32) *uint32 {
	const line = 16
	hash := (uint64(mark/line)<<32 | uint64(number)) * 0x9e3779b97f4a7c15
	first, _ := bits.Mul64(hash, uint64(len(x.byHolder)/line))
	return &x.byHolder[first*line+uint64(mark%line)]
}

// slot is where in a table a hash belongs.
func slot(hash uint64, table []uint32) uint64 {
	high, _ := bits.Mul64(hash, uint64(len(table)))
	return high
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
	chunks []*[arenaChunk]T
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
		a.chunks = append(a.chunks, new([arenaChunk]T))
	}
	a.used++
	return a.used - 1
}

func (a *arena[T, P]) give(i uint32) {
	*a.at(i).link() = a.free
	a.free = i
}
