package routers

func (s *segment) link() *uint32 { return &s.next }
func (h *holding) link() *uint32 { return &h.next }

// bytes is the memory that the index has taken, but for a few words per replica.
func (x *prefixIndex) bytes() int {
	return x.segments.bytes() + x.holdings.bytes() + 4*(len(x.byHash)+len(x.byHolder))
}

// grow makes a segment of the chain's marks from an index on, after another one, 0 at the start of the chain.
func (x *prefixIndex) grow(parent uint32, blocks chain, k int) (at uint32) {
	if x.byHash == nil {
		x.byHash, x.byHolder = make([]uint32, x.capacity+1), make([]uint32, x.capacity+1)
	}
	at = x.segments.take()
	s := x.segments.at(at)
	*s = segment{parent: parent, start: uint32(k), marks: uint32(min(segmentMarks, blocks.marks()-k))}
	for i := range int(s.marks) {
		s.hashes[i] = blocks.mark(k + i)
	}
	x.enlist(at)
	if parent != 0 {
		x.segments.at(parent).child = at
	}
	x.branch(parent, +1)
	return at
}

// split has the first marks of a segment be one of their own, which all hold who held the whole; false if there is no room for that.
// The rest stays where it is, for what goes on from it knows it by its place.
func (x *prefixIndex) split(at uint32, marks int) (ok bool) {
	s := x.segments.at(at)
	if x.size+int(s.count) > x.capacity {
		return false
	}
	x.delist(at)
	front := x.segments.take()
	f := x.segments.at(front)
	*f = segment{parent: s.parent, branches: max(1, s.branches), child: at, start: s.start, marks: uint32(marks), hashes: s.hashes}
	s.parent, s.start, s.marks = front, s.start+uint32(marks), s.marks-uint32(marks)
	copy(s.hashes[:], s.hashes[marks:])
	x.enlist(front)
	x.enlist(at)
	if f.parent != 0 {
		x.segments.at(f.parent).child = front
	}
	for i := s.first; i != 0; i = x.holdings.at(i).right {
		h := x.holdings.at(i)
		j := x.place(front, h.holder)
		half := x.holdings.at(j)
		half.since, half.claims, half.confirmed = h.since, h.claims, h.confirmed
		x.use(j, h.newer)
	}
	return true
}

// join has the end of a chain, when it is confirmed, become part of the segment before it, if that has room, nothing else goes on from
// there, and one replica holds both and used both last together. So a conversation that grows by little is not a segment for each turn.
func (x *prefixIndex) join(i uint32) {
	h := x.holdings.at(i)
	own, s := &x.holders[h.holder], x.segments.at(h.segment)
	p := x.segments.at(s.parent)
	if s.parent == 0 || s.branches > 0 || p.branches > 1 || p.count > 1 || h.newer != p.first || p.marks+s.marks > segmentMarks {
		return
	}
	copy(p.hashes[p.marks:], s.hashes[:s.marks])
	marks, blocks := s.marks, x.blocks(i)
	x.drop(i)
	p.marks += marks
	own.blocks += blocks
}

// blocks is how many blocks a holding stands for.
func (x *prefixIndex) blocks(i uint32) int {
	s := x.segments.at(x.holdings.at(i).segment)
	return position(int(s.start+s.marks)) - position(int(s.start))
}

// hold makes a holding of a segment, which counts as used just before the one above it, that of the segment before; most
// recently if there is none.
func (x *prefixIndex) hold(at, number, above uint32) (i uint32) {
	i = x.place(at, number)
	h := x.holdings.at(i)
	h.since, h.claims = x.turn, 1
	x.holders[number].blocks += x.blocks(i)
	x.use(i, above)
	return i
}

// place makes a holding and puts it where it is found.
func (x *prefixIndex) place(at, number uint32) (i uint32) {
	s := x.segments.at(at)
	head := x.heldBy(at, number)
	i = x.holdings.take()
	*x.holdings.at(i) = holding{segment: at, holder: number, next: *head, right: s.first}
	*head = i
	if s.first != 0 {
		x.holdings.at(s.first).left = i
	}
	s.first = i
	s.count++
	x.size++
	return i
}

// drop removes a holding, and its segment if nobody else holds it.
func (x *prefixIndex) drop(i uint32) {
	h := x.holdings.at(i)
	s := x.segments.at(h.segment)
	x.holders[h.holder].blocks -= x.blocks(i)
	x.unuse(i)
	if h.left != 0 {
		x.holdings.at(h.left).right = h.right
	} else {
		s.first = h.right
	}
	if h.right != 0 {
		x.holdings.at(h.right).left = h.left
	}
	link := x.heldBy(h.segment, h.holder)
	for *link != i {
		link = &x.holdings.at(*link).next
	}
	*link = h.next
	if s.count--; s.count == 0 {
		x.delist(h.segment)
		x.branch(s.parent, -1)
		x.segments.give(h.segment)
	}
	x.size--
	x.holdings.give(i)
}

// enlist puts a segment where it is found by its first mark.
func (x *prefixIndex) enlist(at uint32) {
	s := x.segments.at(at)
	head := &x.byHash[slot(s.hashes[0], x.byHash)]
	s.next, *head = *head, at
}

func (x *prefixIndex) delist(at uint32) {
	s := x.segments.at(at)
	link := &x.byHash[slot(s.hashes[0], x.byHash)]
	for *link != at {
		link = &x.segments.at(*link).next
	}
	*link = s.next
}

// branch counts a segment that comes or goes below another one, 0 at the start of a chain. That is an end less or more for
// all above too, and in all, but where it takes the place of an end, or gives it back.
func (x *prefixIndex) branch(i uint32, change int32) {
	for i != 0 {
		s := x.segments.at(i)
		before := s.branches
		s.branches += uint32(change)
		if i = s.parent; before == 0 || s.branches == 0 {
			return
		}
	}
	x.ends += uint32(change)
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
