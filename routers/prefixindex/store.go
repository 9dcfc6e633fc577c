package prefixindex

func (n *node) nextFree() *uint32    { return &n.nextInBucket }
func (h *holding) nextFree() *uint32 { return &h.nextInBucket }

// addNode adds a child of parent, or a root if parent is 0, with the chain's checkpoints from k on.
// The caller adds the first holding.
func (x *Index) addNode(parent uint32, c chain, k int) (at uint32) {
	if x.nodeTable == nil {
		x.nodeTable, x.holdingTable = make([]uint32, x.maxHoldings+1), make([]uint32, x.maxHoldings+1)
	}
	at = x.nodes.alloc()
	n := x.nodes.at(at)
	*n = node{parent: parent, start: uint32(k), size: uint32(min(nodeSize, c.checkpoints()-k))}
	for i := range int(n.size) {
		n.checkpoints[i] = c.checkpoint(k + i)
	}
	x.hashInsert(at)
	if parent != 0 {
		x.nodes.at(parent).lastChild = at
	}
	x.countLeaf(parent, +1)
	return at
}

// split moves the first size checkpoints of a node into a new parent node with the same holders.
// The rest keeps the index, by which the children refer to their parent. split reports false if the
// index is full.
func (x *Index) split(at uint32, size int) (ok bool) {
	n := x.nodes.at(at)
	if x.numHoldings+int(n.holders) > x.maxHoldings {
		return false
	}
	x.hashRemove(at)
	front := x.nodes.alloc()
	f := x.nodes.at(front)
	*f = node{parent: n.parent, leaves: max(1, n.leaves), lastChild: at, start: n.start, size: uint32(size), checkpoints: n.checkpoints}
	n.parent, n.start, n.size = front, n.start+uint32(size), n.size-uint32(size)
	copy(n.checkpoints[:], n.checkpoints[size:])
	x.hashInsert(front)
	x.hashInsert(at)
	if f.parent != 0 {
		x.nodes.at(f.parent).lastChild = front
	}
	for i := n.firstHolding; i != 0; i = x.holdings.at(i).right {
		h := x.holdings.at(i)
		j := x.link(front, h.number)
		half := x.holdings.at(j)
		half.since, half.inFlight, half.confirmed = h.since, h.inFlight, h.confirmed
		x.lruPush(j, h.newer)
	}
	return true
}

// mergeLeaf moves the checkpoints of a confirmed leaf into its parent, if they fit, the leaf is the
// only child, and one holder has both and used both last together. Otherwise a conversation growing
// by a few blocks per turn would have a node per turn.
func (x *Index) mergeLeaf(i uint32) {
	h := x.holdings.at(i)
	own, n := &x.holders[h.number], x.nodes.at(h.node)
	p := x.nodes.at(n.parent)
	if n.parent == 0 || n.leaves > 0 || p.leaves > 1 || p.holders > 1 || h.newer != p.firstHolding || p.size+n.size > nodeSize {
		return
	}
	copy(p.checkpoints[p.size:], n.checkpoints[:n.size])
	size, blocks := n.size, x.holdingBlocks(i)
	x.removeHolding(i)
	p.size += size
	own.blocks += blocks
}

// holdingBlocks returns the number of blocks covered by a holding.
func (x *Index) holdingBlocks(i uint32) int {
	n := x.nodes.at(x.holdings.at(i).node)
	return blockCount(int(n.start+n.size)) - blockCount(int(n.start))
}

// addHolding adds a holding of a node for the request of this turn. The holding counts as used just
// before above, the holding of the parent, or most recently if above is 0.
func (x *Index) addHolding(at, number, above uint32) (i uint32) {
	i = x.link(at, number)
	h := x.holdings.at(i)
	h.since, h.inFlight = x.turn, 1
	x.holders[number].blocks += x.holdingBlocks(i)
	x.lruPush(i, above)
	return i
}

// link allocates a holding and inserts it into the node's list and the table.
func (x *Index) link(at, number uint32) (i uint32) {
	n := x.nodes.at(at)
	head := x.holdingBucket(at, number)
	i = x.holdings.alloc()
	*x.holdings.at(i) = holding{node: at, number: number, nextInBucket: *head, right: n.firstHolding}
	*head = i
	if n.firstHolding != 0 {
		x.holdings.at(n.firstHolding).left = i
	}
	n.firstHolding = i
	n.holders++
	x.numHoldings++
	return i
}

// removeHolding removes a holding from all lists, and the node after its last holding.
func (x *Index) removeHolding(i uint32) {
	h := x.holdings.at(i)
	n := x.nodes.at(h.node)
	x.holders[h.number].blocks -= x.holdingBlocks(i)
	x.lruRemove(i)
	if h.left != 0 {
		x.holdings.at(h.left).right = h.right
	} else {
		n.firstHolding = h.right
	}
	if h.right != 0 {
		x.holdings.at(h.right).left = h.left
	}
	ref := x.holdingBucket(h.node, h.number)
	for *ref != i {
		ref = &x.holdings.at(*ref).nextInBucket
	}
	*ref = h.nextInBucket
	if n.holders--; n.holders == 0 {
		x.hashRemove(h.node)
		x.countLeaf(n.parent, -1)
		x.nodes.free(h.node)
	}
	x.numHoldings--
	x.holdings.free(i)
}

func (x *Index) hashInsert(at uint32) {
	n := x.nodes.at(at)
	head := &x.nodeTable[bucket(n.checkpoints[0], x.nodeTable)]
	n.nextInBucket, *head = *head, at
}

func (x *Index) hashRemove(at uint32) {
	n := x.nodes.at(at)
	ref := &x.nodeTable[bucket(n.checkpoints[0], x.nodeTable)]
	for *ref != at {
		ref = &x.nodes.at(*ref).nextInBucket
	}
	*ref = n.nextInBucket
}

// countLeaf adjusts the leaf count of node i and its ancestors after a child was added (+1) or
// removed (-1). The walk stops where a leaf became an inner node or the reverse, since the number
// of leaves above is then unchanged.
func (x *Index) countLeaf(i uint32, change int32) {
	for i != 0 {
		n := x.nodes.at(i)
		before := n.leaves
		n.leaves += uint32(change)
		if i = n.parent; before == 0 || n.leaves == 0 {
			return
		}
	}
	x.leaves += uint32(change)
}

// lruPush inserts a holding into the holder's LRU list just behind above, or as the most recently
// used if above is 0.
func (x *Index) lruPush(i, above uint32) {
	h := x.holdings.at(i)
	owner := &x.holders[h.number]
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

// lruRemove removes a holding from the holder's LRU list.
func (x *Index) lruRemove(i uint32) {
	h := x.holdings.at(i)
	owner := &x.holders[h.number]
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
