package simulated

// A segmentTree holds the known blocks of a cache as a tree of segments: chains with a common
// prefix share the segments of the prefix.
type segmentTree struct {
	slabs     []*slab     // by ID; segment 0 is the root of all chains and both ends of the LRU list
	allocated segmentID   // IDs used at least once
	buckets   []segmentID // heads of the hash lists, by first hash; the length is a power of two
	freeList  segmentID   // linked by hashNext
	known     int         // blocks
	idle      int         // known blocks without a lease
}

// A segmentID is the index of a segment. IDs instead of pointers spare the garbage collector the
// scan of a large cache.
type segmentID uint32

// A segment is a run of consecutive blocks in a chain, held by the same leases. One lookup, one pin
// and one position in the LRU list serve all blocks of a segment; prompts share long runs of
// blocks, and moving from segment to segment is the main cost of a cache.
//
// Children and the ends of leases always follow a segment's last block. A segment is split to let a
// child follow an earlier block. The parent of a known segment is known: a lease on a segment also
// holds the parent, and releases the parent later. A segment fills two cache lines.
type segment struct {
	hashes             [segmentBlocks]uint64
	blocks             uint32    // number of hashes; 0 in the free list
	pins               uint32    // number of leases
	parent             segmentID // 0 at the start of a chain
	lastChild          segmentID // the child found last; 0 if there never was one
	hashNext           segmentID // in the bucket's list or the free list
	lruOlder, lruNewer segmentID // while idle
}

const segmentBlocks = 12

// A slab is memory for segments. The tree grows slab by slab, without copying segments.
type slab [64]segment

func newSegmentTree() segmentTree {
	return segmentTree{slabs: []*slab{new(slab)}, allocated: 1, buckets: make([]segmentID, 1)}
}

// segment returns the segment with the given ID.
func (s *segmentTree) segment(at segmentID) *segment {
	return &s.slabs[at/segmentID(len(slab{}))][at%segmentID(len(slab{}))]
}

// A chainMatch is the known prefix of a chain.
type chainMatch struct {
	last   segmentID // the segment with the last matching block
	part   int       // matching blocks of the segment
	blocks int       // matching blocks in all
	idle   int       // the idle ones among them
}

// matchChain follows a chain from the start.
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

// child returns the child of parent that shares a prefix with chain, and the number of common
// blocks; or 0, 0. It tries the child found last time first, which nearly always matches; a segment
// without any child so far needs no lookup.
func (s *segmentTree) child(parent segmentID, chain []uint64) (child segmentID, common int) {
	p := s.segment(parent)
	if p.lastChild == 0 {
		return 0, 0
	}
	if common = s.segment(p.lastChild).commonPrefix(chain); common > 0 {
		return p.lastChild, common
	}
	for child = *s.bucket(chain[0]); child != 0; child = s.segment(child).hashNext {
		if common = s.segment(child).commonPrefix(chain); common > 0 {
			p.lastChild = child
			return child, common
		}
	}
	return 0, 0
}

// commonPrefix returns the number of leading blocks shared by the segment and chain.
func (r *segment) commonPrefix(chain []uint64) (n int) {
	for n < min(int(r.blocks), len(chain)) && r.hashes[n] == chain[n] {
		n++
	}
	return n
}

// appendBlocks makes leading blocks of chain known after a segment held by the caller. It returns
// their segment, with one pin, and their number. Blocks are appended to the same segment if the
// segment has no other lease, no child, and room; otherwise they start a new one.
func (s *segmentTree) appendBlocks(parent segmentID, chain []uint64) (at segmentID, n int) {
	r := s.segment(parent)
	if at = parent; at == 0 || r.pins > 1 || r.lastChild != 0 || r.blocks == segmentBlocks {
		at = s.allocSegment()
		r.lastChild = at
		r = s.segment(at)
		*r = segment{pins: 1, parent: parent}
		r.hashes[0] = chain[0]
		s.hashInsert(at)
	}
	n = copy(r.hashes[r.blocks:], chain)
	r.blocks += uint32(n)
	s.known += n
	return at, n
}

// split moves the leading blocks of a segment into a new parent segment and returns the parent, or
// the segment itself if there are no further blocks. The tail keeps its ID, since leases and
// children refer to a segment's end.
func (s *segmentTree) split(at segmentID, blocks int) segmentID {
	if at == 0 || blocks == int(s.segment(at).blocks) {
		return at
	}
	front := s.allocSegment()
	f, tail := s.segment(front), s.segment(at)
	s.hashRemove(at)
	*f = *tail
	f.blocks, f.lastChild = uint32(blocks), at
	tail.blocks -= f.blocks
	copy(tail.hashes[:], tail.hashes[blocks:])
	tail.parent = front
	s.hashInsert(front)
	s.hashInsert(at)
	if f.pins == 0 { // the tail is evicted before the front
		f.lruOlder, tail.lruNewer = at, front
		s.segment(f.lruNewer).lruOlder = front
	}
	return front
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

// removeIdle removes a segment from the LRU list.
func (s *segmentTree) removeIdle(r *segment) {
	s.segment(r.lruOlder).lruNewer, s.segment(r.lruNewer).lruOlder = r.lruNewer, r.lruOlder
	s.idle -= int(r.blocks)
}

// evictBlocks forgets idle blocks, from the end of the least recently used segment on. The least
// recently used segment has no children left: children become idle before their parent, and so are
// evicted first.
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

// bucket returns the head of the list for segments with the given first hash.
func (s *segmentTree) bucket(hash uint64) *segmentID {
	return &s.buckets[hash&uint64(len(s.buckets)-1)]
}

func (s *segmentTree) hashInsert(at segmentID) {
	r := s.segment(at)
	b := s.bucket(r.hashes[0])
	r.hashNext, *b = *b, at
}

func (s *segmentTree) hashRemove(at segmentID) {
	r := s.segment(at)
	link := s.bucket(r.hashes[0])
	for *link != at {
		link = &s.segment(*link).hashNext
	}
	*link = r.hashNext
}

// allocSegment returns an unused segment. To keep the lists short, it doubles the buckets when
// there are more segments than buckets.
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
		for known := segmentID(1); known < at; known++ { // every one is in use: the free list is empty
			s.hashInsert(known)
		}
	}
	return at
}
