package llmserver

import "time"

// Slow start for least request as in Envoy, with an aggression of 1 (source:
// envoy.config.cluster.v3.Cluster.SlowStartConfig).
const (
	slowStart = 30 * time.Second // the window
	minShare  = 0.1              // the share at the beginning
)

// markRecovered begins the slow start of a replica after it was down or ejected.
func (r *Replica) markRecovered() { r.recoveredAt.Store(int64(monotonic())) }

// WeightedLoad returns the value by which load is compared within a tier: the load divided by the
// replica's intended share. The share is 1, except after a recovery: then the share grows linearly
// from 0.1 to 1 in 30 s. A recovered replica has no load because of the outage, and cold caches;
// without slow start every request would go there. Without load the share does not matter, so an
// idle fleet uses the replica at once. WeightedLoad may be called from any goroutine and does not
// block.
func (r *Replica) WeightedLoad() float64 {
	load := float64(r.Load())
	recovered := r.recoveredAt.Load()
	if recovered == 0 {
		return load
	}
	share := float64(int64(monotonic())-recovered) / float64(slowStart)
	if share >= 1 {
		// The compare-and-swap fails if the replica has recovered once more since; the new slow
		// start must not be lost.
		r.recoveredAt.CompareAndSwap(recovered, 0)
		return load
	}
	return load / max(share, minShare)
}
