package prefixindex

import (
	"math"
	"slices"
	"unsafe"
)

// Index records which holders have which prefixes, see the package comment. A holder of a node
// holds all ancestors of the node, because
//
//   - a prompt is inserted from its start;
//   - the least recently used holding of a holder is evicted first, and of one prompt the deeper
//     nodes count as used less recently;
//   - a node is rolled back only if no other in-flight request depends on it. A request that
//     depends on a node also depends on all of its unconfirmed ancestors; confirmed nodes are never
//     rolled back.
//
// An Index is not safe for concurrent use: Match, too, modifies the Index.
type Index struct {
	maxHoldings int // fits the whole index into the budget
	maxBlocks   int // of one holder
	value       ValueFunc

	nodes        arena[node, *node]
	holdings     arena[holding, *holding]
	nodeTable    []uint32 // heads of bucket lists, by first checkpoint; nil before the first Insert
	holdingTable []uint32 // heads of bucket lists, by node and holder
	numHoldings  int
	leaves       uint32 // nodes without a child: the number of distinct prompts

	evictions uint64

	holders     []holder // by number
	freeNumbers []uint32 // of removed holders
	turn        uint32   // counts Add, Remove and Insert; wraps around

	path          []uint32 // scratch space: nodes in Match, holdings in Insert and Settle
	totals        []total  // of Match, by index in path
	matched       []uint32 // results of Match, with matchedBlocks and matchedValue by number
	matchedBlocks []int32
	matchedValue  []int
}

// ValueFunc returns the value of one cached block. branches is the number of known prompts
// continuing from the block, 0 at the end of a prompt; prompts and holders are the numbers of all
// known prompts and holders.
type ValueFunc func(branches, prompts uint32, holders int) int

// Holder identifies a holder from Add to Remove.
type Holder struct{ number, since uint32 }

// Number returns a small number for use as an index. Numbers of removed holders are assigned again.
func (h Holder) Number() uint32 { return h.number }

// Pending identifies the nodes that one in-flight request depends on: those of a chain not
// confirmed at the insertion, which are all from one checkpoint on.
type Pending struct {
	holder Holder
	chain  chain
	from   int // the first checkpoint
	turn   uint32
}

// node is a run of checkpoints with the same holders, of which there is at least one. All indices
// are into arenas; 0 means none.
type node struct {
	nextInBucket uint32
	firstHolding uint32
	holders      uint32 // number of holdings
	parent       uint32
	leaves       uint32 // nodes without a child below this one; 0 for a node without a child
	lastChild    uint32 // the child found last, perhaps evicted since; 0: there never was one
	start        uint32 // index of the first checkpoint in the chain
	size         uint32 // number of checkpoints
	checkpoints  [nodeSize]uint64
}

// holding is one node at one holder.
type holding struct {
	node, number uint32
	nextInBucket uint32
	left, right  uint32 // in the node's list of holdings
	older, newer uint32 // in the holder's LRU list
	since        uint32 // the turn of the insertion
	inFlight     uint32 // unsettled requests depending on the holding
	confirmed    bool   // a depending request has succeeded
}

// holder is the state of a holder, or of a free number.
type holder struct {
	since          uint32 // the turn of the last Add or Remove
	oldest, newest uint32 // the ends of the LRU list of holdings
	blocks         int    // covered by the holdings
}

const (
	// nodeSize is the capacity of a node in checkpoints. A node fills two cache lines.
	nodeSize = 12
	// holdingBytes is the cost of a node's only holding, the node and the share of the tables
	// included.
	holdingBytes = int(unsafe.Sizeof(holding{})+unsafe.Sizeof(node{})) + 4 + 4
	// MinBytes is the smallest budget of an Index.
	MinBytes = 2 * chunkLen * holdingBytes
)

// New returns an Index of at most the given number of bytes, at least MinBytes, besides a few words
// per holder. perHolder > 0 bounds the blocks recorded for each holder, to the size of a cache.
func New(bytes, perHolder int, value ValueFunc) *Index {
	if perHolder <= 0 {
		perHolder = math.MaxInt
	}
	capacity := min(bytes/holdingBytes, 1<<30) / chunkLen * chunkLen
	return &Index{maxHoldings: capacity - 1, maxBlocks: perHolder, value: value} // index 0 is not used
}

// Bytes returns the memory taken by the index, besides a few words per holder.
func (x *Index) Bytes() int {
	return x.nodes.bytes() + x.holdings.bytes() + 4*(len(x.nodeTable)+len(x.holdingTable))
}

// Evictions returns the number of checkpoints evicted so far to make room for others.
func (x *Index) Evictions() uint64 { return x.evictions }

// Add returns a new holder without any blocks.
func (x *Index) Add() Holder {
	x.turn++
	number := uint32(len(x.holders))
	if n := len(x.freeNumbers); n > 0 {
		number, x.freeNumbers = x.freeNumbers[n-1], x.freeNumbers[:n-1]
	} else {
		x.holders = append(x.holders, holder{})
		x.matchedBlocks, x.matchedValue = append(x.matchedBlocks, 0), append(x.matchedValue, 0)
	}
	x.holders[number] = holder{since: x.turn}
	return Holder{number, x.turn}
}

// Remove forgets a holder. A second call does nothing.
func (x *Index) Remove(h Holder) {
	if !x.Has(h) {
		return
	}
	x.Forget(h)
	x.turn++
	x.holders[h.number].since = x.turn
	x.freeNumbers = append(x.freeNumbers, h.number)
}

// Has reports whether h has been added and not removed.
func (x *Index) Has(h Holder) bool {
	return int(h.number) < len(x.holders) && x.holders[h.number].since == h.since
}

// Forget drops all blocks of a holder, as after a restart of the process.
func (x *Index) Forget(h Holder) {
	for own := &x.holders[h.number]; own.oldest != 0; {
		x.removeHolding(own.oldest)
	}
}

// Insert records a prompt as sent to h, and returns the number of its blocks that h had before. The
// caller passes the Pending to Settle once. Where other requests depend on too much of a full
// index, only a prefix of the prompt is recorded.
func (x *Index) Insert(h Holder, blocks []uint64) (known int, p Pending) {
	x.turn++
	p = Pending{holder: h, chain: blocks[:min(len(blocks), x.maxBlocks)], turn: x.turn}
	at, have := x.touch(&p)
	x.makeRoom(h.number, have, p.chain.checkpoints())
	above := uint32(0)
	if n := len(x.path); n > 0 {
		above = x.path[n-1]
	}
	for k := have; k < p.chain.checkpoints(); {
		next, ok := x.findOrSplit(at, p.chain, k)
		if !ok {
			p.chain = p.chain.cut(k)
			break
		}
		if next == 0 {
			next = x.addNode(at, p.chain, k)
		}
		above = x.addHolding(next, h.number, above)
		k += int(x.nodes.at(next).size)
		at = next
	}
	return blockCount(have), p
}

// touch walks down the holder's part of p's chain, makes that part most recently used, and counts p
// as in flight on the holdings from the first unconfirmed one on. path is set to the holdings; the
// results are the last of their nodes and the number of checkpoints up to the end of that node.
func (x *Index) touch(p *Pending) (last uint32, have int) {
	x.path, p.from = x.path[:0], -1
	for have < p.chain.checkpoints() {
		next, ok := x.findOrSplit(last, p.chain, have)
		if !ok {
			p.chain = p.chain.cut(have)
			break
		}
		i := x.findHolding(next, p.holder.number)
		if i == 0 {
			break
		}
		h := x.holdings.at(i)
		if p.from < 0 && !h.confirmed {
			p.from = have
		}
		if p.from >= 0 {
			h.inFlight++
		}
		x.path = append(x.path, i)
		last = next
		have += int(x.nodes.at(next).size)
	}
	if p.from < 0 {
		p.from = have
	}
	for _, i := range slices.Backward(x.path) {
		x.lruRemove(i)
		x.lruPush(i, 0)
	}
	return last, have
}

// Settle ends a request. After a success the nodes that the request depends on are confirmed;
// otherwise those that no other request depends on are rolled back. Nodes evicted and inserted
// again since are left alone, and after Remove of the holder Settle does nothing.
func (x *Index) Settle(p Pending, succeeded bool) {
	if !x.Has(p.holder) {
		return
	}
	x.path = x.path[:0]
	at := uint32(0)
	if p.from < p.chain.checkpoints() {
		at = x.nodeByHash(p.chain.checkpoint(p.from))
	}
	for k := p.from; at != 0; {
		i := x.findHolding(at, p.holder.number)
		if i == 0 || later(x.holdings.at(i).since, p.turn) {
			break // the deeper nodes are newer still
		}
		x.path = append(x.path, i)
		if k += int(x.nodes.at(at).size); k >= p.chain.checkpoints() {
			break
		}
		at = x.child(at, p.chain.checkpoint(k))
	}
	for _, i := range slices.Backward(x.path) {
		h := x.holdings.at(i)
		h.inFlight--
		h.confirmed = h.confirmed || succeeded
		if h.inFlight == 0 && !h.confirmed {
			x.removeHolding(i)
		}
	}
	if succeeded && len(x.path) > 0 {
		x.mergeLeaf(x.path[len(x.path)-1])
	}
}

// later reports whether turn a is after b.
func later(a, b uint32) bool { return int32(a-b) > 0 }
