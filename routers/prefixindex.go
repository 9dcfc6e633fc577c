package routers

import (
	"slices"
	"sort"
	"unsafe"

	"berth/llmserver"
)

// prefixIndex knows which replica was sent which chains of blocks, within a fixed
// number of bytes. It keeps the marks of a chain, see chain. Who holds a mark holds all
// marks of the chain before it, too, and everything below keeps that so:
//
//   - what is learned is learned from the start of a chain;
//   - what a replica used least recently goes first, and of one chain the deeper
//     marks count as used less recently;
//   - what is withdrawn is claimed by no other request, and a request that claims
//     a mark claims those before it as far as they are not confirmed, and those stay.
//
// Hence the holders of a mark are among the holders of the one before it, equally
// many are the same ones, and the length of a match is found by bisection.
//
// A prefixIndex is not safe for concurrent use.
type prefixIndex struct {
	capacity   int // holdings at most
	perReplica int // blocks of one replica that its holdings stand for at most

	marks    arena[mark, *mark]
	holdings arena[holding, *holding]
	byHash   []uint32 // heads of lists of marks; nil until something is learned
	byHolder []uint32 // heads of lists of holdings
	size     int      // holdings

	evictions uint64 // holdings that made room for others

	holders []holder // by number
	vacant  []uint32 // numbers to be given again
	turn    uint32   // the last claim's

	path  []uint32 // of learn
	depth []int32  // of match, by number
	worth []int    // of match, by number: what it would cost to do without what is held
	found []uint32 // the numbers that have a depth
	steps []step   // of weigh
}

// mark is a mark that somebody holds. Indices are into arenas, 0 is none.
type mark struct {
	hash     uint64
	next     uint32 // in its list of byHash
	first    uint32 // its holdings
	count    uint32 // of them
	parent   uint32 // the mark before it in its chain, which is there as long as this one
	branches uint32 // how many chains that are held end below it, 0 if one ends in it
	child    uint32 // the mark that was last found after it; 0: there was none yet
}

// holding is a mark at a replica.
type holding struct {
	mark, holder uint32
	next         uint32 // in its list of byHolder
	left, right  uint32 // among the mark's holdings
	older, newer uint32 // among the holder's
	since        uint32 // the turn in which it was learned
	claims       uint32 // requests under way that carried it when it was not confirmed
	span         uint16 // blocks since the mark before
	confirmed    bool   // one that carried it was answered
}

// holder is a replica by its number.
type holder struct {
	replica        *llmserver.Replica // nil where the number is vacant
	since          uint32             // the turn in which it got the number
	oldest, newest uint32
	blocks         int // that its holdings stand for
}

const (
	// holdingBytes is what a holding costs if its mark has no other, the tables included.
	holdingBytes = int(unsafe.Sizeof(holding{})+unsafe.Sizeof(mark{})) + 4 + 4
	// minIndexBytes is the smallest budget.
	minIndexBytes = 2 * arenaChunk * holdingBytes
	// maxLevels and maxHolders bound what a match looks at: so many different lengths, the longest
	// first, and no mark with more holders. What so many hold tells little.
	maxLevels, maxHolders = 16, 128
)

// newPrefixIndex makes an index of at most that many bytes, but for a few
// words per replica; perReplica > 0 bounds the blocks of each.
func newPrefixIndex(bytes, perReplica int) *prefixIndex {
	capacity := min(bytes/holdingBytes, 1<<30) / arenaChunk * arenaChunk
	x := &prefixIndex{capacity: capacity - 1, perReplica: capacity - 1} // none is 0
	if perReplica > 0 {
		x.perReplica = min(x.perReplica, perReplica)
	}
	return x
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
	blocks = blocks[:min(len(blocks), x.perReplica)]
	x.turn++
	c = claim{chain: blocks, from: -1, number: number, turn: x.turn}
	marks := blocks.marks()
	x.path = x.path[:0]
	at := uint32(0)
	for k := range marks {
		at = x.after(at, blocks.mark(k))
		i := x.holding(at, number)
		if i == 0 {
			break
		}
		h := x.holdings.at(i)
		if c.from < 0 && !h.confirmed {
			c.from = k
		}
		if c.from >= 0 {
			h.claims++
		}
		x.path = append(x.path, i)
	}
	have := len(x.path)
	if c.from < 0 {
		c.from = have
	}
	for _, i := range slices.Backward(x.path) {
		x.unuse(i)
		x.use(i, 0)
	}
	x.makeRoom(number, have, marks)
	above := uint32(0)
	if have > 0 {
		above = x.path[have-1]
	}
	for k := have; k < marks; k++ {
		above = x.add(number, blocks, k, above)
	}
	return position(have), c
}

// settle ends a claim: what it relied on is confirmed, or withdrawn where nobody
// else claims it. Holdings that are newer than the claim are not its own.
func (x *prefixIndex) settle(c claim, confirmed bool) {
	at := uint32(0) // the mark at k, if one after it was there
	for k := c.chain.marks() - 1; k >= c.from; k-- {
		if at == 0 {
			at = x.mark(c.chain.mark(k))
		}
		i := x.holding(at, c.number)
		if at != 0 {
			at = x.marks.at(at).parent
		}
		if i == 0 || later(x.holdings.at(i).since, c.turn) {
			continue
		}
		h := x.holdings.at(i)
		h.claims--
		h.confirmed = h.confirmed || confirmed
		if h.claims == 0 && !h.confirmed {
			x.drop(i)
		}
	}
}

// match notes in depth how many of the blocks each replica holds and in worth what they are worth, for those
// in found, and returns the most.
func (x *prefixIndex) match(blocks chain) (longest int) {
	for _, number := range x.found {
		x.depth[number], x.worth[number] = 0, 0
	}
	x.found = x.found[:0]
	n := sort.Search(blocks.marks(), func(k int) bool { return x.mark(blocks.mark(k)) == 0 })
	longest = position(n)
	x.weigh(blocks, n)
	count := uint32(0)
	for range maxLevels {
		// The most marks that more replicas hold than what was looked at last.
		n = sort.Search(n, func(k int) bool { return x.marks.at(x.mark(blocks.mark(k))).count <= count })
		if n == 0 {
			break
		}
		m := x.marks.at(x.mark(blocks.mark(n - 1)))
		if count = m.count; count > maxHolders {
			break
		}
		held := position(n)
		worth := x.total(held)
		for i := m.first; i != 0; i = x.holdings.at(i).right {
			number := x.holdings.at(i).holder
			if x.depth[number] == 0 {
				x.depth[number], x.worth[number] = int32(held), worth
				x.found = append(x.found, number)
			}
		}
	}
	return longest
}

// step is where in a chain blocks begin to be worth so much each.
type step struct{ from, worth int }

// weigh notes in steps what the blocks are worth that the first n marks of a chain stand for, the deepest first. Towards the
// beginning of a chain ever more chains go on from a block, so the steps are found by bisection.
func (x *prefixIndex) weigh(blocks chain, n int) {
	worthAt := func(k int) int { return worth(x.marks.at(x.mark(blocks.mark(k))).branches) }
	x.steps = x.steps[:0]
	for n > 0 {
		first, most := 0, worthAt(n-1)
		if most > 1 {
			first = sort.Search(n, func(k int) bool { return worthAt(k) >= most })
		}
		x.steps = append(x.steps, step{position(first), most})
		n = first
	}
}

// total is what so many leading blocks are worth together.
func (x *prefixIndex) total(blocks int) (sum int) {
	for _, s := range x.steps {
		if blocks > s.from {
			sum += (blocks - s.from) * s.worth
			blocks = s.from
		}
	}
	return sum
}

// makeRoom evicts until a replica can hold so many marks of a chain, the first kept
// of which it holds already and most recently.
func (x *prefixIndex) makeRoom(number uint32, kept, marks int) {
	own := &x.holders[number]
	for own.blocks+position(marks)-position(kept) > x.perReplica {
		x.evict(own)
	}
	for x.size+marks-kept > x.capacity {
		// Engines have about equally much memory, so of who has the most the least is still true.
		victim, most := own, own.blocks-position(kept)
		for i := range x.holders {
			if h := &x.holders[i]; h != own && h.blocks > most {
				victim, most = h, h.blocks
			}
		}
		for x.size+marks-kept > x.capacity && most > 0 {
			most -= int(x.holdings.at(victim.oldest).span)
			x.evict(victim)
		}
	}
}

// evict drops what a replica used least recently.
func (x *prefixIndex) evict(h *holder) {
	x.drop(h.oldest)
	x.evictions++
}
