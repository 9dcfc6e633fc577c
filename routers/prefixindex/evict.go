package prefixindex

// makeRoom evicts holdings until a holder can hold the given number of checkpoints of a chain, in
// the worst case one per node. The first kept of them are held already, as the most recently used.
// Some room remains for splitting a node.
func (x *Index) makeRoom(number uint32, kept, checkpoints int) {
	own := &x.holders[number]
	for {
		excess := own.blocks + blockCount(checkpoints) - blockCount(kept) - x.maxBlocks
		if excess <= 0 {
			break
		}
		x.trim(own, excess)
	}
	reserve := min(len(x.holders), x.maxHoldings/4) // leaves room for any chain
	for x.numHoldings+checkpoints-kept+reserve > x.maxHoldings {
		// Caches are about equally large, so the record of the holder with most blocks is the most
		// outdated.
		victim, most := own, own.blocks-blockCount(kept)
		for i := range x.holders {
			if h := &x.holders[i]; h != own && h.blocks > most {
				victim, most = h, h.blocks
			}
		}
		for x.numHoldings+checkpoints-kept+reserve > x.maxHoldings && most > 0 {
			most -= x.holdingBlocks(victim.oldest)
			x.evict(victim)
		}
	}
}

// trim evicts the given number of a holder's least recently used blocks, rounded up to checkpoints,
// or one node if smaller.
func (x *Index) trim(h *holder, blocks int) {
	at := x.holdings.at(h.oldest).node
	n := x.nodes.at(at)
	keep, end := int(n.size)-1, blockCount(int(n.start+n.size))
	for keep > 0 && end-blockCount(int(n.start)+keep) < blocks {
		keep--
	}
	if keep > 0 {
		x.split(at, keep) // the end is the oldest then; without room for the split the whole node goes
	}
	x.evict(h)
}

// evict drops a holder's least recently used holding.
func (x *Index) evict(h *holder) {
	x.evictions += uint64(x.nodes.at(x.holdings.at(h.oldest).node).size)
	x.removeHolding(h.oldest)
}
