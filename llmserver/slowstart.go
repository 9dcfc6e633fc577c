package llmserver

import "time"

const (
	// slowStart is how long a replica that has come back is spared.
	slowStart = 30 * time.Second
	// leastShare is the part of its full share that it gets in the beginning.
	minShare = 0.1
)

// comeBack begins the slow start of a replica that was down or ejected.
func (r *Replica) markRecovered() { r.recoveredAt.Store(int64(monotonic())) }

// WeightedLoad is what load comparisons within a tier go by: the load, with the request to be placed, over
// the share that the replica is to get. The share is 1, but after the replica has come back it grows
// from a tenth to 1 in half a minute: one whose caches are cold, and that has no load only because it
// was away, would else get all that comes. Tiers of one are not reordered. It is Envoy's slow start
// for least request, envoy.config.cluster.v3.Cluster.SlowStartConfig, with an aggression of 1.
func (r *Replica) WeightedLoad() float64 {
	load := float64(r.Load() + 1)
	back := r.recoveredAt.Load()
	if back == 0 {
		return load
	}
	share := float64(int64(monotonic())-back) / float64(slowStart)
	if share >= 1 {
		r.recoveredAt.CompareAndSwap(back, 0)
		return load
	}
	return load / max(share, minShare)
}
