package routers

import (
	"math/bits"
	"slices"
)

// sum is what the blocks up to the end of a segment are: how many, and what they are worth together.
type sum struct{ blocks, worth int }

// match notes in depth how many of the blocks each replica holds and in worth what they are worth, for those
// in found, and returns the most.
func (x *prefixIndex) match(blocks chain) (longest int) {
	for _, number := range x.found {
		x.depth[number], x.worth[number] = 0, 0
	}
	x.found, x.path, x.sums = x.found[:0], x.path[:0], x.sums[:0]
	total, fair := sum{}, x.fair()
	for at, k := uint32(0), 0; k < blocks.marks(); {
		next, common := x.next(at, blocks, k)
		if next == 0 {
			break
		}
		s := x.segments.at(next)
		k += common
		total.worth += (position(k) - total.blocks) * worth(s.branches, fair)
		total.blocks = position(k)
		x.path, x.sums = append(x.path, next), append(x.sums, total)
		at = next
	}
	x.find()
	return total.blocks
}

// fair is how many chains may have a block in common, see worth.
func (x *prefixIndex) fair() float64 {
	return commonShare * float64(x.ends) / float64(max(1, len(x.holders)-len(x.vacant)))
}

// find notes what the holders of the segments on the path hold, the deepest first.
func (x *prefixIndex) find() {
	count, levels := uint32(0), 0
	for i, at := range slices.Backward(x.path) {
		s := x.segments.at(at)
		if s.count == count {
			continue // the same ones
		}
		if count, levels = s.count, levels+1; count > maxHolders || levels > maxLevels {
			break
		}
		for j := s.first; j != 0; j = x.holdings.at(j).right {
			number := x.holdings.at(j).holder
			if x.depth[number] == 0 {
				x.depth[number], x.worth[number] = int32(x.sums[i].blocks), x.sums[i].worth
				x.found = append(x.found, number)
			}
		}
	}
}

// beginning finds the segment with that first mark.
func (x *prefixIndex) beginning(hash uint64) uint32 {
	if x.byHash == nil {
		return 0
	}
	i := x.byHash[slot(hash, x.byHash)]
	for i != 0 {
		s := x.segments.at(i)
		if s.hashes[0] == hash {
			break
		}
		i = s.next
	}
	return i
}

// after finds the segment with that first mark that follows another one in its chain, or begins it if that is none. What was
// found there the last time is looked at first, and is nearly always it; where nothing ever was, there is nothing.
func (x *prefixIndex) after(parent uint32, hash uint64) uint32 {
	if parent == 0 {
		return x.beginning(hash)
	}
	p := x.segments.at(parent)
	if p.child == 0 {
		return 0
	}
	if s := x.segments.at(p.child); s.hashes[0] == hash && s.count > 0 {
		return p.child
	}
	i := x.beginning(hash)
	if i != 0 {
		p.child = i
	}
	return i
}

// next finds the segment that goes on after another one with the chain's mark at k, and how many of its marks are the chain's.
func (x *prefixIndex) next(parent uint32, blocks chain, k int) (at uint32, common int) {
	if at = x.after(parent, blocks.mark(k)); at == 0 {
		return 0, 0
	}
	s := x.segments.at(at)
	// A mark stands for all before it, so the last one that is the chain's tells.
	common = min(int(s.marks), blocks.marks()-k)
	for common > 1 && s.hashes[common-1] != blocks.mark(k+common-1) {
		common--
	}
	return at, common
}

// whole is next for who is going to hold what is found: where the chain leaves the segment or ends in it, that is split. 0: there is
// none; false: there is no room.
func (x *prefixIndex) whole(parent uint32, blocks chain, k int) (at uint32, ok bool) {
	at, common := x.next(parent, blocks, k)
	if at == 0 || common == int(x.segments.at(at).marks) {
		return at, true
	}
	if !x.split(at, common) {
		return 0, false
	}
	return x.segments.at(at).parent, true
}

// holding finds a segment at a replica.
func (x *prefixIndex) holding(at, number uint32) uint32 {
	if at == 0 {
		return 0
	}
	i := *x.heldBy(at, number)
	for i != 0 {
		h := x.holdings.at(i)
		if h.segment == at && h.holder == number {
			break
		}
		i = h.next
	}
	return i
}

// heldBy is the list in which a segment at a replica is, if it is held there. The segments of a chain mostly have numbers in
// sequence, and what a replica holds of them is in one line of the processor's cache.
func (x *prefixIndex) heldBy(at, number uint32) *uint32 {
	const line = 16
	hash := (uint64(at/line)<<32 | uint64(number)) * 0x9e3779b97f4a7c15
	first, _ := bits.Mul64(hash, uint64(len(x.byHolder)/line))
	return &x.byHolder[first*line+uint64(at%line)]
}

// slot is where in a table a hash belongs.
func slot(hash uint64, table []uint32) uint64 {
	high, _ := bits.Mul64(hash, uint64(len(table)))
	return high
}
