//go:build !race

// Under the race detector a sync.Pool drops things at random.

package routers

import "testing"

func TestRouterChooseAllocatesFourTimesAtMost(t *testing.T) {
	for _, c := range conforming {
		build, err := Lookup(c.class, c.kwargs)
		if err != nil {
			t.Fatal(err)
		}
		r := New(plainReplicas(64, 16), build, roomy, Hooks{})
		p := &Payload{Blocks: long(1, 100)}
		got := testing.AllocsPerRun(1000, func() {
			sel, err := r.Choose(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			sel.slot.Start()
			sel.outcome.Served = true
			sel.Release()
		})
		if got > 4 {
			t.Errorf("%s %v: %v allocations", c.class, c.kwargs, got)
		}
	}
}
