package prefixindex

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// check fails unless the index is sound: the holder of a node holds its parent and used it later,
// tables and lists agree, and all counts are right.
func (x *Index) check(t interface{ Fatalf(string, ...any) }) {
	total := 0
	held := make(map[uint32]uint32) // number of holders by node
	for number := range x.holders {
		h, blocks := &x.holders[number], 0
		newer := make(map[uint32]bool)
		for i := h.newest; i != 0; i = x.holdings.at(i).older {
			at := x.holdings.at(i).node
			if parent := x.nodes.at(at).parent; parent != 0 && !newer[parent] {
				t.Fatalf("holder %d has a node without its parent, or would evict the parent first", number)
			}
			if x.findHolding(at, uint32(number)) != i || x.holdings.at(i).number != uint32(number) {
				t.Fatalf("a holding of holder %d is not in the table", number)
			}
			newer[at] = true
			blocks += x.holdingBlocks(i)
			held[at]++
			total++
		}
		if blocks != h.blocks || blocks > x.maxBlocks {
			t.Fatalf("holder %d has %d blocks, counts %d and may have %d", number, blocks, h.blocks, x.maxBlocks)
		}
	}
	if total != x.numHoldings || total > x.maxHoldings {
		t.Fatalf("%d holdings, counted %d, of at most %d", total, x.numHoldings, x.maxHoldings)
	}
	for at, count := range held {
		n := x.nodes.at(at)
		if found := x.nodeByHash(n.checkpoints[0]); n.holders != count || n.size == 0 || found != at {
			t.Fatalf("node %d of %d holders counts %d, has %d checkpoints and is found as %d", at, count, n.holders, n.size, found)
		}
		if p := x.nodes.at(n.parent); n.parent != 0 && p.start+p.size != n.start || n.parent == 0 && n.start != 0 {
			t.Fatalf("a node starts at %d, which is not the end of its parent", n.start)
		}
	}
	x.checkLeaves(t, held)
}

// checkLeaves recounts the leaves below each node.
func (x *Index) checkLeaves(t interface{ Fatalf(string, ...any) }, held map[uint32]uint32) {
	inner, below, leaves := make(map[uint32]bool), make(map[uint32]uint32), uint32(0)
	for i := range held {
		inner[x.nodes.at(i).parent] = true
	}
	for i := range held {
		if !inner[i] {
			leaves++
			for above := x.nodes.at(i).parent; above != 0; above = x.nodes.at(above).parent {
				below[above]++
			}
		}
	}
	for i := range held {
		if got := x.nodes.at(i).leaves; got != below[i] {
			t.Fatalf("a node with %d leaves below counts %d", below[i], got)
		}
	}
	if leaves != x.leaves {
		t.Fatalf("%d leaves in all, counted %d", leaves, x.leaves)
	}
}

// chainOf returns the hashes of blocks named by numbers: equal prefixes have equal hashes.
func chainOf(blocks ...int) chain {
	c, hash := make(chain, len(blocks)), uint64(0)
	for i, b := range blocks {
		hash = (hash ^ uint64(b+1)) * 0x9e3779b97f4a7c15
		hash ^= hash >> 29
		c[i] = hash
	}
	return c
}

// long returns a chain of n blocks that shares none with a chain of another seed.
func long(seed, n int) chain {
	blocks := slices.Repeat([]int{0}, n)
	blocks[0] = seed
	return chainOf(blocks...)
}

// newIndex returns an index in which every block has the value 1.
func newIndex(bytes, perHolder int) *Index {
	return New(bytes, perHolder, func(uint32, uint32, int) int { return 1 })
}

func TestPrefixIndexCheckpointsCoverWhatTheyCount(t *testing.T) {
	for n := range 5000 {
		c := make(chain, n)
		k := c.checkpoints()
		if blockCount(k) > n || blockCount(k+1) <= n {
			t.Fatalf("a chain of %d has %d checkpoints, the last at %d and the next at %d", n, k, blockCount(k), blockCount(k+1))
		}
		if n-blockCount(k) > n/(denseBlocks/2) {
			t.Fatalf("of a chain of %d only %d are covered", n, blockCount(k))
		}
	}
	if k := make(chain, 1024).checkpoints(); k != 192 {
		t.Errorf("1024 blocks have %d checkpoints; want 192", k)
	}
}

func TestPrefixIndexStaysWithinItsBudget(t *testing.T) {
	for _, budget := range []int{MinBytes, 1 << 20, 3_000_000} {
		t.Run(fmt.Sprint(budget), func(t *testing.T) {
			x, random := newIndex(budget, 0), rand.New(rand.NewPCG(1, 2))
			var holders []Holder
			for range 20 {
				holders = append(holders, x.Add())
			}
			var inFlight []Pending
			for i := range 3000 {
				c := long(random.IntN(500), 1+random.IntN(100))
				if i%500 == 0 {
					c = long(random.IntN(500), 100_000)
				}
				h := holders[random.IntN(20)]
				_, p := x.Insert(h, c)
				if x.Match(c); x.MatchedBlocks(h.Number()) != blockCount(c.checkpoints()) {
					t.Fatalf("of a prompt of %d blocks %d are known", len(c), x.MatchedBlocks(h.Number()))
				}
				if inFlight = append(inFlight, p); len(inFlight) > 50 {
					x.Settle(inFlight[0], random.IntN(2) == 0)
					inFlight = inFlight[1:]
				}
				if x.Bytes() > budget {
					t.Fatalf("after %d prompts it takes %d bytes of %d", i, x.Bytes(), budget)
				}
				if i%100 == 0 {
					x.check(t)
				}
			}
			if x.numHoldings < x.maxHoldings/2 {
				t.Errorf("it has %d holdings of %d although more was inserted", x.numHoldings, x.maxHoldings)
			}
			for _, h := range holders {
				x.Remove(h)
				x.Remove(h)
			}
			if x.numHoldings != 0 || len(x.freeNumbers) != 20 {
				t.Errorf("without holders it has %d holdings and %d free numbers; want 0 and 20", x.numHoldings, len(x.freeNumbers))
			}
		})
	}
}

func TestPrefixIndexFullHasRoomToSplitANodeOfFewHolders(t *testing.T) {
	for holders, inserted := range map[int]bool{300: true, 600: false} {
		x := newIndex(MinBytes, 0)
		shared := long(1, nodeSize)
		all, pending := make([]Holder, holders), make([]Pending, holders)
		for i := range all {
			all[i] = x.Add()
			_, pending[i] = x.Insert(all[i], shared)
		}
		for i := range x.maxHoldings {
			x.Insert(all[0], long(2+i, 1))
		}
		part := chainOf(1, 0, 0, 0, 0, 0, 5, 5, 5) // shares half of the node
		known, p := x.Insert(all[7], part)
		x.check(t)
		if x.Match(part); inserted != (known == nodeSize/2 && x.MatchedBlocks(7) == len(part)) {
			t.Errorf("with %d holders, %d blocks were known and %d are now", holders, known, x.MatchedBlocks(7))
		}
		x.Settle(p, false)
		x.Settle(pending[7], true)
		x.check(t)
		if i := x.findHolding(x.nodeByHash(shared[0]), 7); x.holdings.at(i).inFlight != 0 || !x.holdings.at(i).confirmed {
			t.Errorf("with %d holders, the shared node is not confirmed and settled", holders)
		}
	}
}

func TestPrefixIndexMergesTheTurnsOfAConversation(t *testing.T) {
	x := newIndex(MinBytes, 0)
	h := x.Add()
	for turn := range denseBlocks {
		_, p := x.Insert(h, long(1, turn+1))
		x.Settle(p, true)
		x.check(t)
	}
	if most := 2 * denseBlocks / nodeSize; x.numHoldings > most {
		t.Errorf("%d blocks inserted one by one take %d nodes; want at most %d", denseBlocks, x.numHoldings, most)
	}
}

func TestPrefixIndexEvictsTheLeastRecentlyUsed(t *testing.T) {
	x := newIndex(MinBytes, 10)
	h := x.Add()
	_, start := x.Insert(h, long(1, 4))
	x.Settle(start, true)
	_, whole := x.Insert(h, long(1, 6))
	x.Insert(h, long(2, 2))
	x.Insert(h, long(1, 4))
	x.Settle(whole, true)
	x.Insert(h, long(3, 4))
	if first, second := x.Match(long(1, 6)), x.Match(long(2, 2)); first != 4 || second != 2 {
		t.Errorf("%d blocks remain of a prompt whose end was used before another prompt, and %d of that one; want 4 and 2", first, second)
	}
}

func TestPrefixIndexEvictsFromTheHolderWithMost(t *testing.T) {
	x := newIndex(MinBytes, 0)
	small, big := x.Add(), x.Add()
	x.Insert(small, long(1, 30))
	for i := range 100 {
		x.Insert(big, long(100+i, 40))
	}
	if x.Match(long(1, 30)) != 30 || x.MatchedBlocks(small.Number()) != 30 {
		t.Error("a holder with few blocks made room for the one with most")
	}
}

// A request of a removed holder settles nothing of the holder that has its number now.
func TestPrefixIndexIgnoresRequestsOfARemovedHolder(t *testing.T) {
	x := newIndex(MinBytes, 0)
	old := x.Add()
	_, late := x.Insert(old, long(1, 9))
	x.Remove(old)
	now := x.Add()
	if now.Number() != old.Number() || x.Has(old) || !x.Has(now) {
		t.Fatalf("the number %d of the removed holder was not assigned again", old.Number())
	}
	_, p := x.Insert(now, long(1, 9))
	x.Settle(late, false)
	x.check(t)
	if x.Match(long(1, 9)); x.MatchedBlocks(now.Number()) != 9 {
		t.Errorf("the new holder has %d blocks; want 9", x.MatchedBlocks(now.Number()))
	}
	x.Settle(p, true)
}

// The value of a block depends on the number of prompts that continue from it.
func TestPrefixIndexPassesTheBranchesOfEachBlock(t *testing.T) {
	type args struct {
		branches, prompts uint32
		holders           int
	}
	var got []args
	x := New(MinBytes, 0, func(branches, prompts uint32, holders int) int {
		got = append(got, args{branches, prompts, holders})
		return 10
	})
	h := x.Add()
	x.Remove(x.Add())
	x.Insert(h, chainOf(1, 2, 3, 4, 5))
	x.Insert(h, chainOf(1, 2, 3, 6))
	x.Insert(h, chainOf(7))
	if longest := x.Match(chainOf(1, 2, 3, 4, 5)); longest != 5 || x.MatchedValue(h.Number()) != 50 {
		t.Errorf("Match = %d, of the value %d; want 5, 50", longest, x.MatchedValue(h.Number()))
	}
	if want := []args{{2, 3, 1}, {0, 3, 1}}; !slices.Equal(got, want) {
		t.Errorf("the values were asked for %v; want %v", got, want)
	}
	if !slices.Equal(x.Matched(), []uint32{h.Number()}) {
		t.Errorf("Matched = %v", x.Matched())
	}
}

func BenchmarkMatch(b *testing.B) {
	x := newIndex(64<<20, 0)
	for i := range 64 {
		x.Insert(x.Add(), chainOf(slices.Repeat([]int{0}, 20+i%16*10)...))
	}
	prompt := chainOf(slices.Repeat([]int{0}, 200)...)
	for b.Loop() {
		x.Match(prompt)
	}
}
