package routers

import (
	"sync"
	"testing"

	"berth/llmserver"
)

// Equal prompts that come together, while nobody knows them, must not be computed all over the fleet.
func TestPrefixAffinityHerdOfEqualPromptsIsComputedByFewReplicas(t *testing.T) {
	const herd, capacity = 64, 64
	build, err := Lookup("PrefixCacheAffinityRouter", nil)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 50 {
		r := New(plainReplicas(8, capacity), build, roomy, Hooks{})
		prompt := long(round, 4096*bytesPerToken/DefaultPrefixOptions.BlockBytes)
		start, chosen := make(chan struct{}), make(chan *Selection, herd)
		var all sync.WaitGroup
		for range herd {
			all.Go(func() {
				<-start
				sel, err := r.Choose(t.Context(), &Payload{Blocks: prompt})
				if err != nil {
					t.Error(err)
					return
				}
				chosen <- sel
			})
		}
		close(start)
		all.Wait()
		close(chosen)
		computing := make(map[*llmserver.Replica]bool)
		for sel := range chosen {
			computing[sel.Replica()] = true
			sel.slot.Start()
			defer sel.Release()
		}
		if len(computing) > 2 {
			t.Fatalf("in round %d %d replicas compute it; want at most 2", round, len(computing))
		}
	}
}
