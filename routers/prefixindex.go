package routers

import (
	"math"
	"slices"
	"unsafe"

	"berth/llmserver"
)

// prefixIndex knows which replica was sent which chains of blocks, within a fixed
// number of bytes. It keeps the marks of chains, see chain, in a radix tree. Its nodes are segments: a few marks in
// sequence that the same replicas hold, split where a chain leaves them or ends. Who holds a segment holds all
// segments of the chain before it, too, and everything below keeps that so:
//
//   - what is learned is learned from the start of a chain;
//   - what a replica used least recently goes first, and of one chain the deeper
//     marks count as used less recently;
//   - what is withdrawn is claimed by no other request, and a request that claims a
//     segment claims those before it as far as they are not confirmed, and those stay.
//
// Hence the holders of a segment are among the holders of the one before it, and equally many are the same ones.
//
// A prefixIndex is not safe for concurrent use.
type prefixIndex struct {
	capacity   int // holdings at most
	perReplica int // blocks of one replica that its holdings stand for at most

	segments arena[segment, *segment]
	holdings arena[holding, *holding]
	byHash   []uint32 // heads of lists of segments, by their first marks; nil until something is learned
	byHolder []uint32 // heads of lists of holdings
	size     int      // holdings
	ends     uint32   // chains that are held

	evictions uint64 // marks at replicas that made room for others

	holders []holder // by number
	vacant  []uint32 // numbers to be given again
	turn    uint32   // the last claim's

	path  []uint32 // of learn, settle and match
	depth []int32  // of match, by number
	worth []int    // of match, by number: what it would cost to do without what is held
	found []uint32 // the numbers that have a depth
	sums  []sum    // of match, of each segment on the path
}

// segment is some marks in sequence, of which somebody holds all. Indices are into arenas, 0 is none.
type segment struct {
	next     uint32 // in its list of byHash
	first    uint32 // its holdings
	count    uint32 // of them
	parent   uint32 // the segment before it in its chain, which is there as long as this one
	branches uint32 // how many chains that are held end below it, 0 if one ends with it
	child    uint32 // the segment that was last found after it; 0: there was none yet
	start    uint32 // the index of its first mark in its chain
	marks    uint32 // how many it has
	hashes   [segmentMarks]uint64
}

// holding is a segment at a replica.
type holding struct {
	segment, holder uint32
	next            uint32 // in its list of byHolder
	left, right     uint32 // among the segment's holdings
	older, newer    uint32 // among the holder's
	since           uint32 // the turn in which it was learned
	claims          uint32 // requests under way that carried it when it was not confirmed
	confirmed       bool   // one that carried it was answered
}

// holder is a replica by its number.
type holder struct {
	replica        *llmserver.Replica // nil where the number is vacant
	since          uint32             // the turn in which it got the number
	oldest, newest uint32
	blocks         int // that its holdings stand for
}

const (
	// segmentMarks fills two lines of the processor's cache.
	segmentMarks = 12
	// holdingBytes is what a holding costs if its segment has no other, the tables included.
	holdingBytes = int(unsafe.Sizeof(holding{})+unsafe.Sizeof(segment{})) + 4 + 4
	// minIndexBytes is the smallest budget.
	minIndexBytes = 2 * arenaChunk * holdingBytes
	// maxLevels and maxHolders bound what a match looks at: so many different lengths, the longest
	// first, and no segment with more holders. What so many hold tells little.
	maxLevels, maxHolders = 16, 128
)

// newPrefixIndex makes an index of at most that many bytes, but for a few
// words per replica; perReplica > 0 bounds the blocks of each.
func newPrefixIndex(bytes, perReplica int) *prefixIndex {
	if perReplica <= 0 {
		perReplica = math.MaxInt
	}
	capacity := min(bytes/holdingBytes, 1<<30) / arenaChunk * arenaChunk
	return &prefixIndex{capacity: capacity - 1, perReplica: perReplica} // none is 0
}

// enter gives a replica a number.
func (x *prefixIndex) enter(r *llmserver.Replica) (number uint32) {
	x.turn++
	if n := len(x.vacant); n > 0 {
		number, x.vacant = x.vacant[n-1], x.vacant[:n-1]
	} else {
		number = uint32(len(x.holders))
		x.holders, x.depth, x.worth = append(x.holders, holder{}), append(x.depth, 0), append(x.worth, 0)
	}
	x.holders[number] = holder{replica: r, since: x.turn}
	return number
}

// leave forgets all of a replica and takes its number back.
func (x *prefixIndex) leave(number uint32) {
	x.forget(number)
	x.holders[number].replica = nil
	x.vacant = append(x.vacant, number)
}

// forget drops all that a replica holds.
func (x *prefixIndex) forget(number uint32) {
	for h := &x.holders[number]; h.oldest != 0; {
		x.drop(h.oldest)
	}
}

// claim is what one request relies on: the marks of a chain from an index on, at a
// replica, which were not confirmed when it came.
type claim struct {
	chain  chain
	from   int
	number uint32
	turn   uint32
}

// later tells whether turn a is after b; turns wrap around.
func later(a, b uint32) bool { return int32(a-b) > 0 }

// learn notes that a chain goes to a replica, and how many of its blocks are known to be there already.
func (x *prefixIndex) learn(number uint32, blocks chain) (known int, c claim) {
	x.turn++
	c = claim{chain: blocks[:min(len(blocks), x.perReplica)], number: number, turn: x.turn}
	at, have := x.touch(&c)
	x.makeRoom(number, have, c.chain.marks())
	above := uint32(0)
	if n := len(x.path); n > 0 {
		above = x.path[n-1]
	}
	for k := have; k < c.chain.marks(); {
		next, ok := x.whole(at, c.chain, k)
		if !ok {
			c.cut(k)
			break
		}
		if next == 0 {
			next = x.grow(at, c.chain, k)
		}
		above = x.hold(next, number, above)
		k += int(x.segments.at(next).marks)
		at = next
	}
	return position(have), c
}

// touch claims what the replica holds of the claim's chain, which counts as used now, and notes it in path. It returns the last
// segment of that and the marks up to its end.
func (x *prefixIndex) touch(c *claim) (last uint32, marks int) {
	x.path, c.from = x.path[:0], -1
	for marks < c.chain.marks() {
		next, ok := x.whole(last, c.chain, marks)
		if !ok {
			c.cut(marks)
			break
		}
		i := x.holding(next, c.number)
		if i == 0 {
			break
		}
		h := x.holdings.at(i)
		if c.from < 0 && !h.confirmed {
			c.from = marks
		}
		if c.from >= 0 {
			h.claims++
		}
		x.path = append(x.path, i)
		last = next
		marks += int(x.segments.at(next).marks)
	}
	if c.from < 0 {
		c.from = marks
	}
	for _, i := range slices.Backward(x.path) {
		x.unuse(i)
		x.use(i, 0)
	}
	return last, marks
}

// cut leaves only so many marks of the claim's chain, since there is no room for more.
func (c *claim) cut(marks int) { c.chain = c.chain[:position(marks)] }

// settle ends a claim: what it relied on is confirmed, or withdrawn where nobody
// else claims it. Holdings that are newer than the claim are not its own.
func (x *prefixIndex) settle(c claim, confirmed bool) {
	x.path = x.path[:0]
	at := uint32(0)
	if c.from < c.chain.marks() {
		at = x.beginning(c.chain.mark(c.from))
	}
	for k := c.from; at != 0; {
		i := x.holding(at, c.number)
		if i == 0 || later(x.holdings.at(i).since, c.turn) {
			break // and so are those below
		}
		x.path = append(x.path, i)
		if k += int(x.segments.at(at).marks); k >= c.chain.marks() {
			break
		}
		at = x.after(at, c.chain.mark(k))
	}
	for _, i := range slices.Backward(x.path) {
		h := x.holdings.at(i)
		h.claims--
		h.confirmed = h.confirmed || confirmed
		if h.claims == 0 && !h.confirmed {
			x.drop(i)
		}
	}
	if confirmed && len(x.path) > 0 {
		x.join(x.path[len(x.path)-1])
	}
}

// makeRoom evicts until a replica can hold so many marks of a chain, the first kept of which it holds already and most
// recently, be it in a segment each; and then there is room left to split one.
func (x *prefixIndex) makeRoom(number uint32, kept, marks int) {
	own := &x.holders[number]
	for {
		excess := own.blocks + position(marks) - position(kept) - x.perReplica
		if excess <= 0 {
			break
		}
		x.trim(own, excess)
	}
	spare := min(len(x.holders), x.capacity/4) // beside which any chain has room
	for x.size+marks-kept+spare > x.capacity {
		// Engines have about equally much memory, so of who has the most the least is still true.
		victim, most := own, own.blocks-position(kept)
		for i := range x.holders {
			if h := &x.holders[i]; h != own && h.blocks > most {
				victim, most = h, h.blocks
			}
		}
		for x.size+marks-kept+spare > x.capacity && most > 0 {
			most -= x.blocks(victim.oldest)
			x.evict(victim)
		}
	}
}

// trim evicts of what a replica used least recently so many blocks, or a segment if that is less.
func (x *prefixIndex) trim(h *holder, blocks int) {
	at := x.holdings.at(h.oldest).segment
	s := x.segments.at(at)
	keep, end := int(s.marks)-1, position(int(s.start+s.marks))
	for keep > 0 && end-position(int(s.start)+keep) < blocks {
		keep--
	}
	if keep > 0 {
		x.split(at, keep) // the end is the oldest then; without room for that all of it goes
	}
	x.evict(h)
}

// evict drops what a replica used least recently.
func (x *prefixIndex) evict(h *holder) {
	x.evictions += uint64(x.segments.at(x.holdings.at(h.oldest).segment).marks)
	x.drop(h.oldest)
}
