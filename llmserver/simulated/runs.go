package simulated

// runs are the known blocks of a cache, as a tree: chains that begin alike share the runs of what is alike.
type runs struct {
	slabs  []*slab // by place; at place 0 is no run, but the start of every chain and both ends of the idle ones
	places place   // used at least once
	heads  []place // of the lists of runs, by first hash; a power of two
	vacant place   // the list of runs that are gone
	known  int     // blocks
	idle   int     // of them, those that nobody holds
}

// place is where a run lies. Places and no pointers, of which there would be many, are what the garbage collector passes by.
type place uint32

// run is some blocks that follow each other in a chain and are held by the same leases, so that one look, one pin and one
// place in the order of eviction do for all of them: prompts share long runs of blocks, and going from place to place is
// what a cache costs. Whatever comes after a run, another run or the end of a lease, comes after its last block; where
// something is to come after another one, the run is cut. The run before it in its chain is known as long as it is: whoever
// holds a run holds that one, too, and gives it back later. It is two cache lines.
type run struct {
	hashes       [runBlocks]uint64
	blocks       uint32 // how many there are; 0: it is gone
	pins         uint32 // how many leases hold it
	before       place  // in its chain
	next         place  // the run that was last found after it, which is where the next prompt mostly goes too; 0: there was none yet
	below        place  // in its list of heads, or of the vacant
	older, newer place  // among the idle
}

const runBlocks = 12

// slab is memory for runs. It is taken piece by piece, so that none is copied when there is to be more.
type slab [64]run

func noRuns() runs {
	return runs{slabs: []*slab{new(slab)}, places: 1, heads: make([]place, 1)}
}

// run is the one at a place.
func (s *runs) run(at place) *run { return &s.slabs[at/place(len(slab{}))][at%place(len(slab{}))] }

// found is how far a chain is in memory.
type found struct {
	last   place // the run with the last block
	part   int   // blocks of the last run, its first ones
	blocks int
	idle   int // of them
}

// find follows a chain from its start.
func (s *runs) find(chain []uint64) (f found) {
	for f.blocks < len(chain) {
		at, n := s.after(f.last, chain[f.blocks:])
		if n == 0 {
			break
		}
		f.last, f.part = at, n
		f.blocks += n
		if s.run(at).pins == 0 {
			f.idle += n
		}
	}
	return f
}

// after finds the run that follows another one and begins as the chain does, and how many blocks are alike; 0 if there
// is none. What was found there the last time is looked at first, and is nearly always it; where nothing ever was, there is nothing.
func (s *runs) after(at place, chain []uint64) (next place, alike int) {
	before := s.run(at)
	if before.next == 0 {
		return 0, 0
	}
	if alike = s.run(before.next).alike(chain); alike > 0 {
		return before.next, alike
	}
	for next = *s.head(chain[0]); next != 0; next = s.run(next).below {
		if alike = s.run(next).alike(chain); alike > 0 {
			before.next = next
			return next, alike
		}
	}
	return 0, 0
}

// alike is how many blocks of the run the chain begins with.
func (r *run) alike(chain []uint64) (n int) {
	for n < min(int(r.blocks), len(chain)) && r.hashes[n] == chain[n] {
		n++
	}
	return n
}

// add makes the first blocks of a chain known after a run that the caller holds, with one pin, and tells the run that they are
// in and how many. That is the same run if nobody else holds it, nothing else came after it and there is room.
func (s *runs) add(before place, chain []uint64) (at place, n int) {
	r := s.run(before)
	if at = before; at == 0 || r.pins > 1 || r.next != 0 || r.blocks == runBlocks {
		at = s.take()
		r.next = at
		r = s.run(at)
		*r = run{pins: 1, before: before}
		r.hashes[0] = chain[0]
		s.link(at)
	}
	n = copy(r.hashes[r.blocks:], chain)
	r.blocks += uint32(n)
	s.known += n
	return at, n
}

// cut makes a run of the first blocks of another one, if there are more in that, and tells its place. The others stay where
// they are, since it is their end that leases and later runs refer to.
func (s *runs) cut(at place, blocks int) (head place) {
	if at == 0 || blocks == int(s.run(at).blocks) {
		return at
	}
	head = s.take()
	h, tail := s.run(head), s.run(at)
	s.unlink(at)
	*h = *tail
	h.blocks, h.next = uint32(blocks), at
	tail.blocks -= h.blocks
	copy(tail.hashes[:], tail.hashes[blocks:])
	tail.before = head
	s.link(head)
	s.link(at)
	if h.pins == 0 { // the end is evicted first
		h.older, tail.newer = at, head
		s.run(h.newer).older = head
	}
	return head
}

func (s *runs) pin(at place) {
	r := s.run(at)
	if r.pins == 0 {
		s.wake(r)
	}
	r.pins++
}

func (s *runs) unpin(at place) {
	r, ends := s.run(at), s.run(0)
	if r.pins--; r.pins == 0 {
		r.older, r.newer = ends.older, 0
		s.run(r.older).newer, ends.older = at, at
		s.idle += int(r.blocks)
	}
}

// wake takes a run from the idle ones.
func (s *runs) wake(r *run) {
	s.run(r.older).newer, s.run(r.newer).older = r.newer, r.older
	s.idle -= int(r.blocks)
}

// evict forgets so many idle blocks, from the end of the oldest run on. Nothing follows that, as what did was idle before it.
func (s *runs) evict(blocks int) {
	for blocks > 0 {
		at := s.run(0).newer
		r := s.run(at)
		n := min(blocks, int(r.blocks))
		blocks -= n
		s.known -= n
		if n < int(r.blocks) {
			s.idle -= n
			r.blocks -= uint32(n)
			return
		}
		s.wake(r)
		s.unlink(at)
		r.blocks, r.below, s.vacant = 0, s.vacant, at
	}
}

// head is the list in which a run with that first hash is, if there is one.
func (s *runs) head(hash uint64) *place { return &s.heads[hash&uint64(len(s.heads)-1)] }

// link puts a run in the list of its first hash.
func (s *runs) link(at place) {
	r := s.run(at)
	head := s.head(r.hashes[0])
	r.below, *head = *head, at
}

func (s *runs) unlink(at place) {
	r := s.run(at)
	link := s.head(r.hashes[0])
	for *link != at {
		link = &s.run(*link).below
	}
	*link = r.below
}

// take is a place for a run, a vacant one or one that was not used yet. The lists are kept short.
func (s *runs) take() (at place) {
	if at = s.vacant; at != 0 {
		s.vacant = s.run(at).below
		return at
	}
	at = s.places
	s.places++
	if int(at) == len(s.slabs)*len(slab{}) {
		s.slabs = append(s.slabs, new(slab))
	}
	if int(at) > len(s.heads) {
		s.heads = make([]place, 2*len(s.heads))
		for known := place(1); known < at; known++ { // all of them, as none is vacant
			s.link(known)
		}
	}
	return at
}
