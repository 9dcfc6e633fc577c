package routers

import (
	"slices"
	"testing"

	"berth/routers/prefixindex"
)

// chainOf returns the hashes of blocks named by numbers: equal prefixes have equal hashes.
func chainOf(blocks ...int) []uint64 {
	c, hash := make([]uint64, len(blocks)), uint64(0)
	for i, b := range blocks {
		hash = (hash ^ uint64(b+1)) * 0x9e3779b97f4a7c15
		hash ^= hash >> 29
		c[i] = hash
	}
	return c
}

// long returns a chain of n blocks that shares none with a chain of another seed.
func long(seed, n int) []uint64 {
	blocks := slices.Repeat([]int{0}, n)
	blocks[0] = seed
	return chainOf(blocks...)
}

// newValueIndex returns an index with n holders, by which blocks have their value, and the first of them.
func newValueIndex(n int) (x *prefixindex.Index, first prefixindex.Holder) {
	x = prefixindex.New(prefixindex.MinBytes, 0, blockValue)
	first = x.Add()
	for range n - 1 {
		x.Add()
	}
	return x, first
}

func TestPrefixAffinityValuesSharedBlocksLess(t *testing.T) {
	x, h := newValueIndex(8)
	common := []int{1, 2, 3}
	one := chainOf(append(common, 10, 11)...)
	_, first := x.Insert(h, one)
	value := func() int {
		x.Match(one)
		return x.MatchedValue(h.Number())
	}
	if got := value(); got != 5*recompute {
		t.Errorf("five blocks of one conversation have the value %d; want %d", got, 5*recompute)
	}
	var others []prefixindex.Pending
	for i, want := range []int{recompute / 4, recompute / 9, recompute / 16} {
		_, p := x.Insert(h, chainOf(append(common, 20+i)...))
		others = append(others, p)
		if got := value(); got != 3*want+2*recompute {
			t.Errorf("with %d conversations the first has the value %d; want %d", 2+i, got, 3*want+2*recompute)
		}
	}
	for _, p := range others {
		x.Settle(p, false)
	}
	if got := value(); got != 5*recompute {
		t.Errorf("without the others its value is %d; want %d", got, 5*recompute)
	}
	x.Settle(first, false)
	if got := value(); got != 0 {
		t.Errorf("blocks that are not cached have the value %d", got)
	}
}

func TestPrefixAffinityValuesADocumentInFull(t *testing.T) {
	x, h := newValueIndex(2)
	for i := range 30 {
		x.Insert(h, long(100+i, 2))
	}
	for i := range 10 { // of 40 prompts, of which a replica's fair part is 20
		x.Insert(h, chainOf(1, 2, 3, 10+i))
	}
	x.Match(chainOf(1, 2, 3))
	if got := x.MatchedValue(h.Number()); got != 3*recompute {
		t.Errorf("three blocks that a quarter of the prompts share have the value %d; want %d", got, 3*recompute)
	}
	for i := range 30 {
		x.Insert(h, chainOf(1, 2, 3, 20+i))
	}
	x.Match(chainOf(1, 2, 3))
	if got, want := x.MatchedValue(h.Number()), 3*(recompute*49/144); got != want { // 40 of 70 are 12/7 of two thirds of 35
		t.Errorf("three blocks that most prompts share have the value %d; want %d", got, want)
	}
}
