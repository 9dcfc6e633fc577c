package main

import "testing"

func TestServeTuneGCCollectsAtTheFloorOrAfterGrowth(t *testing.T) {
	for _, c := range []struct{ live, stacks, most uint64 }{
		{0, 0, heapFloor},
		{4 << 20, 1 << 20, heapFloor},
		{20 << 20, 16 << 20, heapFloor},
		{heapFloor, 0, heapFloor * 6 / 5},
		{heapFloor - 1, 20 << 20, heapFloor + (heapFloor+20<<20)/5},
		{1 << 30, 100 << 20, 1<<30 + (1<<30+100<<20)/5},
	} {
		percent := uint64(gcPercent(c.live, c.stacks))
		if goal := c.live + (c.live+c.stacks)*percent/100; goal > c.most || percent < heapGrowth {
			t.Errorf("%d MiB live and %d MiB of stacks: %d %% lets the heap grow to %d MiB, want at most %d",
				c.live>>20, c.stacks>>20, percent, goal>>20, c.most>>20)
		}
	}
}
