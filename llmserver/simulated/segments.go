package simulated

// runs are the known blocks of a cache, as a tree: chains that begin alike share the runs of what is alike.
type segmentTree struct {
	slabs     []*slab     // by place; at place 0 is no run, but the start of every chain and both ends of the idle ones
	allocated segmentID   // used at least once
	buckets   []segmentID // of the lists of runs, by first hash; a power of two
	freeList  segmentID   // the list of runs that are gone
	known     int         // blocks
	idle      int         // of them, those that nobody holds
}

// place is where a run lies. Places and no pointers, of which there would be many, are what the garbage collector passes by.
type segmentID uint32

// run is some blocks that follow each other in a chain and are held by the same leases, so that one look, one pin and one
// place in the order of eviction do for all of them: prompts share long runs of blocks, and going from place to place is
// what a cache costs. Whatever comes after a run, another run or the end of a lease, comes after its last block; where
// something is to come after another one, the run is cut. The run before it in its chain is known as long as it is: whoever
// holds a run holds that one, too, and gives it back later. It is two cache lines.
type segment struct {
	hashes             [segmentBlocks]uint64
	blocks             uint32    // how many there are; 0: it is gone
	pins               uint32    // how many leases hold it
	parent             segmentID // in its chain
	lastChild          segmentID // the run that was last found after it, which is where the next prompt mostly goes too; 0: there was none yet
	hashNext           segmentID // in its list of heads, or of the vacant
	lruOlder, lruNewer segmentID // among the idle
}

const segmentBlocks = 12

// slab is memory for runs. It is taken piece by piece, so that none is copied when there is to be more.
type slab [64]segment

func newSegmentTree() segmentTree {
	return segmentTree{slabs: []*slab{new(slab)}, allocated: 1, buckets: make([]segmentID, 1)}
}

// run is the one at a place.
func (s *segmentTree) segment(at segmentID) *segment {
	return &s.slabs[at/segmentID(len(slab{}))][at%segmentID(len(slab{}))]
}

// found is how far a chain is in memory.
type chainMatch struct {
	last   segmentID // the run with the last block
	part   int       // blocks of the last run, its first ones
	blocks int
	idle   int // of them
}

// find follows a chain from its start.
func (s *segmentTree) matchChain(chain []uint64) (f chainMatch) {
	for f.blocks < len(chain) {
		at, n := s.child(f.last, chain[f.blocks:])
		if n == 0 {
			break
		}
		f.last, f.part = at, n
		f.blocks += n
		if s.segment(at).pins == 0 {
			f.idle += n
		}
	}
	return f
}

// after finds the run that follows another one and begins as the chain does, and how many blocks are alike; 0 if there
// is none. What was found there the last time is looked at first, and is nearly always it; where nothing ever was, there is nothing.
func (s *segmentTree) child(at segmentID, chain []uint64) (next segmentID, alike int) {
	before := s.segment(at)
	if before.lastChild == 0 {
		return 0, 0
	}
	if alike = s.segment(before.lastChild).commonPrefix(chain); alike > 0 {
		return before.lastChild, alike
	}
	for next = *s.bucket(chain[0]); next != 0; next = s.segment(next).hashNext {
		if alike = s.segment(next).commonPrefix(chain); alike > 0 {
			before.lastChild = next
			return next, alike
		}
	}
	return 0, 0
}

// alike is how many blocks of the run the chain begins with.
func (r *segment) commonPrefix(chain []uint64) (n int) {
	for n < min(int(r.blocks), len(chain)) && r.hashes[n] == chain[n] {
		n++
	}
	return n
}

// add makes the first blocks of a chain known after a run that the caller holds, with one pin, and tells the run that they are
// in and how many. That is the same run if nobody else holds it, nothing else came after it and there is room.
func (s *segmentTree) appendBlocks(before segmentID, chain []uint64) (at segmentID, n int) {
	r := s.segment(before)
	if at = before; at == 0 || r.pins > 1 || r.lastChild != 0 || r.blocks == segmentBlocks {
		at = s.allocSegment()
		r.lastChild = at
		r = s.segment(at)
		*r = segment{pins: 1, parent: before}
		r.hashes[0] = chain[0]
		s.hashInsert(at)
	}
	n = copy(r.hashes[r.blocks:], chain)
	r.blocks += uint32(n)
	s.known += n
	return at, n
}

// cut makes a run of the first blocks of another one, if there are more in that, and tells its place. The others stay where
// they are, since it is their end that leases and later runs refer to.
func (s *segmentTree) split(at segmentID, blocks int) (head segmentID) {
	if at == 0 || blocks == int(s.segment(at).blocks) {
		return at
	}
	head = s.allocSegment()
	h, tail := s.segment(head), s.segment(at)
	s.hashRemove(at)
	*h = *tail
	h.blocks, h.lastChild = uint32(blocks), at
	tail.blocks -= h.blocks
	copy(tail.hashes[:], tail.hashes[blocks:])
	tail.parent = head
	s.hashInsert(head)
	s.hashInsert(at)
	if h.pins == 0 { // the end is evicted first
		h.lruOlder, tail.lruNewer = at, head
		s.segment(h.lruNewer).lruOlder = head
	}
	return head
}

func (s *segmentTree) pinSegment(at segmentID) {
	r := s.segment(at)
	if r.pins == 0 {
		s.removeIdle(r)
	}
	r.pins++
}

func (s *segmentTree) unpinSegment(at segmentID) {
	r, ends := s.segment(at), s.segment(0)
	if r.pins--; r.pins == 0 {
		r.lruOlder, r.lruNewer = ends.lruOlder, 0
		s.segment(r.lruOlder).lruNewer, ends.lruOlder = at, at
		s.idle += int(r.blocks)
	}
}

// wake takes a run from the idle ones.
func (s *segmentTree) removeIdle(r *segment) {
	s.segment(r.lruOlder).lruNewer, s.segment(r.lruNewer).lruOlder = r.lruNewer, r.lruOlder
	s.idle -= int(r.blocks)
}

// evict forgets so many idle blocks, from the end of the oldest run on. Nothing follows that, as what did was idle before it.
func (s *segmentTree) evictBlocks(blocks int) {
	for blocks > 0 {
		at := s.segment(0).lruNewer
		r := s.segment(at)
		n := min(blocks, int(r.blocks))
		blocks -= n
		s.known -= n
		if n < int(r.blocks) {
			s.idle -= n
			r.blocks -= uint32(n)
			return
		}
		s.removeIdle(r)
		s.hashRemove(at)
		r.blocks, r.hashNext, s.freeList = 0, s.freeList, at
	}
}

// head is the list in which a run with that first hash is, if there is one.
func (s *segmentTree) bucket(hash uint64) *segmentID {
	return &s.buckets[hash&uint64(len(s.buckets)-1)]
}

// link puts a run in the list of its first hash.
func (s *segmentTree) hashInsert(at segmentID) {
	r := s.segment(at)
	head := s.bucket(r.hashes[0])
	r.hashNext, *head = *head, at
}

func (s *segmentTree) hashRemove(at segmentID) {
	r := s.segment(at)
	link := s.bucket(r.hashes[0])
	for *link != at {
		link = &s.segment(*link).hashNext
	}
	*link = r.hashNext
}

// take is a place for a run, a vacant one or one that was not used yet. The lists are kept short.
func (s *segmentTree) allocSegment() (at segmentID) {
	if at = s.freeList; at != 0 {
		s.freeList = s.segment(at).hashNext
		return at
	}
	at = s.allocated
	s.allocated++
	if int(at) == len(s.slabs)*len(slab{}) {
		s.slabs = append(s.slabs, new(slab))
	}
	if int(at) > len(s.buckets) {
		s.buckets = make([]segmentID, 2*len(s.buckets))
		for known := segmentID(1); known < at; known++ { // all of them, as none is vacant
			s.hashInsert(known)
		}
	}
	return at
}
