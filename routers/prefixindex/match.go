package prefixindex

import (
	"math/bits"
	"slices"
)

// maxLevels and maxHolders bound the work of a match: the number of different match lengths, the
// longest first, and the number of holders of a node. A prefix of more holders does not distinguish
// them.
const maxLevels, maxHolders = 16, 128

// total is the number of blocks from the start of a prompt to the end of a node, and their value.
type total struct{ blocks, value int }

// Match looks up a prompt and returns the length in blocks of the longest known prefix. Matched,
// MatchedBlocks and MatchedValue return the result for each holder until the next call of Match.
func (x *Index) Match(blocks []uint64) (longest int) {
	for _, number := range x.matched {
		x.matchedBlocks[number], x.matchedValue[number] = 0, 0
	}
	x.matched, x.path, x.totals = x.matched[:0], x.path[:0], x.totals[:0]
	c, sum, holders := chain(blocks), total{}, len(x.holders)-len(x.freeNumbers)
	for at, k := uint32(0), 0; k < c.checkpoints(); {
		next, common := x.descend(at, c, k)
		if next == 0 {
			break
		}
		k += common
		end := blockCount(k)
		sum.value += (end - sum.blocks) * x.value(x.nodes.at(next).leaves, x.leaves, holders)
		sum.blocks = end
		x.path, x.totals = append(x.path, next), append(x.totals, sum)
		at = next
	}
	x.matchHolders()
	return sum.blocks
}

// Matched returns the numbers of the holders with some of the prompt last passed to Match. The
// slice is valid until the next call.
func (x *Index) Matched() []uint32 { return x.matched }

// MatchedBlocks returns the number of a holder's blocks of the prompt last passed to Match.
func (x *Index) MatchedBlocks(number uint32) int { return int(x.matchedBlocks[number]) }

// MatchedValue returns the sum of the values of those blocks, see ValueFunc.
func (x *Index) MatchedValue(number uint32) int { return x.matchedValue[number] }

// matchHolders records the holders of the nodes on the path, the deepest node first. The holders of
// a node are a subset of those of its parent: equal counts mean equal sets.
func (x *Index) matchHolders() {
	count, levels := uint32(0), 0
	for i, at := range slices.Backward(x.path) {
		n := x.nodes.at(at)
		if n.holders == count {
			continue
		}
		if count, levels = n.holders, levels+1; count > maxHolders || levels > maxLevels {
			break
		}
		for j := n.firstHolding; j != 0; j = x.holdings.at(j).right {
			number := x.holdings.at(j).number
			if x.matchedBlocks[number] == 0 {
				x.matchedBlocks[number], x.matchedValue[number] = int32(x.totals[i].blocks), x.totals[i].value
				x.matched = append(x.matched, number)
			}
		}
	}
}

// nodeByHash returns the node with the hash as first checkpoint, 0 if there is none.
func (x *Index) nodeByHash(hash uint64) uint32 {
	if x.nodeTable == nil {
		return 0
	}
	i := x.nodeTable[bucket(hash, x.nodeTable)]
	for i != 0 {
		n := x.nodes.at(i)
		if n.checkpoints[0] == hash {
			break
		}
		i = n.nextInBucket
	}
	return i
}

// child returns the child of parent starting with hash, or a root if parent is 0. The child found
// last is tried first and nearly always matches; a node without any child so far needs no lookup.
func (x *Index) child(parent uint32, hash uint64) uint32 {
	if parent == 0 {
		return x.nodeByHash(hash)
	}
	p := x.nodes.at(parent)
	if p.lastChild == 0 {
		return 0
	}
	if n := x.nodes.at(p.lastChild); n.checkpoints[0] == hash && n.holders > 0 {
		return p.lastChild
	}
	i := x.nodeByHash(hash)
	if i != 0 {
		p.lastChild = i
	}
	return i
}

// descend returns the child of parent that continues the chain at checkpoint k, and the number of
// its checkpoints shared with the chain.
func (x *Index) descend(parent uint32, c chain, k int) (at uint32, common int) {
	if at = x.child(parent, c.checkpoint(k)); at == 0 {
		return 0, 0
	}
	n := x.nodes.at(at)
	// A hash stands for all blocks before, so the last equal one decides.
	common = min(int(n.size), c.checkpoints()-k)
	for common > 1 && n.checkpoints[common-1] != c.checkpoint(k+common-1) {
		common--
	}
	return at, common
}

// findOrSplit is descend for an insertion: a node that the chain leaves, or ends in, is split
// there. The results are 0 without such a child, and false if the index has no room for the split.
func (x *Index) findOrSplit(parent uint32, c chain, k int) (at uint32, ok bool) {
	at, common := x.descend(parent, c, k)
	if at == 0 || common == int(x.nodes.at(at).size) {
		return at, true
	}
	if !x.split(at, common) {
		return 0, false
	}
	return x.nodes.at(at).parent, true
}

// findHolding returns the holding of a node by a holder, 0 if there is none.
func (x *Index) findHolding(at, number uint32) uint32 {
	if at == 0 {
		return 0
	}
	i := *x.holdingBucket(at, number)
	for i != 0 {
		h := x.holdings.at(i)
		if h.node == at && h.number == number {
			break
		}
		i = h.nextInBucket
	}
	return i
}

// holdingBucket returns the head of the bucket list of a node's holding by a holder. The nodes of
// one chain mostly have consecutive indices, so a run of 16 is placed in one cache line.
func (x *Index) holdingBucket(at, number uint32) *uint32 {
	const line = 16
	hash := (uint64(at/line)<<32 | uint64(number)) * 0x9e3779b97f4a7c15
	first, _ := bits.Mul64(hash, uint64(len(x.holdingTable)/line))
	return &x.holdingTable[first*line+uint64(at%line)]
}

// bucket returns the index of a hash in a table, by its high bits.
func bucket(hash uint64, table []uint32) uint64 {
	high, _ := bits.Mul64(hash, uint64(len(table)))
	return high
}
