package simulated

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func mustFill(t *testing.T, c *Cache, chain ...uint64) {
	t.Helper()
	l, ok := c.Lease(chain, len(chain))
	if !ok {
		t.Fatalf("no room for %v", chain)
	}
	l.Extend(chain)
	l.Release()
}

func TestCacheFindsPrefixOfEarlierPrompt(t *testing.T) {
	c := NewCache(10*16, 16)
	mustFill(t, c, 1, 2, 3, 4)
	l, _ := c.Lease([]uint64{1, 2, 30, 4}, 4)
	if l.Known() != 2 {
		t.Errorf("found %d blocks, want the 2 before the difference", l.Known())
	}
	if c.Held() != 4 {
		t.Errorf("%d blocks held, want 2 found and 2 blank", c.Held())
	}
}

func TestCacheDoesNotFindUncomputedBlocks(t *testing.T) {
	c := NewCache(10*16, 16)
	l, _ := c.Lease([]uint64{1, 2, 3}, 3)
	if n := c.Match([]uint64{1, 2, 3}); n != 0 {
		t.Errorf("%d blocks found before any was computed", n)
	}
	l.Extend([]uint64{1, 2})
	if n := c.Match([]uint64{1, 2, 3}); n != 2 {
		t.Errorf("%d blocks found, want the 2 computed", n)
	}
	l.Release()
	if n := c.Match([]uint64{1, 2, 3}); n != 2 {
		t.Errorf("%d blocks found after an early release, want the 2 computed", n)
	}
}

func TestCacheEvictsLeastRecentlyUsedAndChainEndsFirst(t *testing.T) {
	c := NewCache(4*16, 16)
	mustFill(t, c, 1, 2)
	mustFill(t, c, 11, 12)
	mustFill(t, c, 1, 2) // used again, so that 11 and 12 are the older ones
	mustFill(t, c, 21)
	if c.Match([]uint64{11, 12}) != 1 || c.Match([]uint64{1, 2}) != 2 {
		t.Errorf("after one eviction: %d of the older chain, %d of the newer", c.Match([]uint64{11, 12}), c.Match([]uint64{1, 2}))
	}
}

func TestCacheNeverEvictsHeldBlocks(t *testing.T) {
	c := NewCache(4*16, 16)
	l, _ := c.Lease([]uint64{1, 2}, 3)
	l.Extend([]uint64{1, 2})
	mustFill(t, c, 5)
	if _, ok := c.Lease([]uint64{6, 7}, 2); ok {
		t.Fatal("two more blocks fit beside three held ones in a cache of four")
	}
	if c.Match([]uint64{5}) != 1 {
		t.Error("a refused lease evicted a block")
	}
	mustFill(t, c, 6)
	if c.Match([]uint64{1, 2}) != 2 || c.Match([]uint64{5}) != 0 {
		t.Error("the held blocks were evicted, or the idle one was not")
	}
	l.Release()
	l.Release()
	if c.Held() != 0 {
		t.Errorf("%d blocks held after the last release", c.Held())
	}
}

func TestCacheStoresEqualBlocksOnce(t *testing.T) {
	c := NewCache(4*16, 16)
	a, _ := c.Lease([]uint64{1, 2}, 2)
	b, _ := c.Lease([]uint64{1, 2}, 2)
	a.Extend([]uint64{1, 2})
	b.Extend([]uint64{1, 2})
	if c.Held() != 2 {
		t.Errorf("%d blocks held by two sequences with the same content, want 2", c.Held())
	}
	a.Release()
	if c.Held() != 2 {
		t.Error("the release of one sequence took the blocks of the other")
	}
	b.Release()
	c.Clear()
	if c.Match([]uint64{1}) != 0 {
		t.Error("Clear left a block that nobody holds")
	}
}

// The cache is compared with the plainest possible one, which stores every lease as a whole.
func TestCacheNeverExceedsCapacityNorLosesBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 12).Draw(t, "capacity")
		c := NewCache(capacity, 1)
		type held struct {
			lease Lease
			chain []uint64
			total int
			known int
		}
		var leases []*held
		t.Repeat(map[string]func(*rapid.T){
			"lease": func(t *rapid.T) {
				chain := chainFrom(rapid.SliceOfN(rapid.Uint64Range(0, 1), 0, 8).Draw(t, "path"))
				total := len(chain) + rapid.IntRange(0, 3).Draw(t, "choices")
				match, before := c.Match(chain), c.Held()
				l, ok := c.Lease(chain, total)
				if !ok {
					if before+total <= capacity {
						t.Fatalf("%d blocks refused with %d of %d held", total, before, capacity)
					}
					if c.Held() != before {
						t.Fatalf("a refused lease changed what is held from %d to %d", before, c.Held())
					}
					return
				}
				if l.Known() != match {
					t.Fatalf("lease found %d blocks, Match %d", l.Known(), match)
				}
				leases = append(leases, &held{l, chain, total, match})
			},
			"extend": func(t *rapid.T) {
				if len(leases) == 0 {
					t.Skip()
				}
				h := rapid.SampledFrom(leases).Draw(t, "lease")
				h.known = max(h.known, rapid.IntRange(0, len(h.chain)).Draw(t, "to"))
				h.lease.Extend(h.chain[:h.known])
			},
			"release": func(t *rapid.T) {
				if len(leases) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(leases)-1).Draw(t, "lease")
				leases[i].lease.Release()
				leases = slices.Delete(leases, i, i+1)
			},
			"": func(t *rapid.T) {
				blank, pinned := 0, map[uint64]bool{}
				for _, h := range leases {
					blank += h.total - h.known
					for _, hash := range h.chain[:h.known] {
						pinned[hash] = true
					}
					if c.Match(h.chain) < h.known {
						t.Fatalf("a lease knows %d blocks, the cache %d", h.known, c.Match(h.chain))
					}
				}
				if want := blank + len(pinned); c.Held() != want {
					t.Fatalf("%d blocks held, want %d blank and %d known", c.Held(), blank, len(pinned))
				}
				if n := c.known + c.blank; n > capacity {
					t.Fatalf("%d blocks in a cache of %d", n, capacity)
				}
			},
		})
	})
}

// chainFrom returns the hashes of the nodes on a path through a binary tree.
func chainFrom(path []uint64) []uint64 {
	chain := make([]uint64, len(path))
	node := uint64(1)
	for i, turn := range path {
		node = node*2 + turn
		chain[i] = node
	}
	return chain
}
