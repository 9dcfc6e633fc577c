// Package routers chooses a replica for each request and reserves a slot on it before anything is
// sent.
//
// A [Router] serves one model. [Router.Choose] returns a [Selection]: a replica and the slot held on
// it. A selection is dispatched at most once and released always:
//
//	sel, err := router.Choose(ctx, payload)
//	if err != nil {
//		return err
//	}
//	defer sel.Release()
//	resp, err := sel.Dispatch(req)
//
// # The way of a request
//
//	Choose
//	  │
//	  ▼
//	Policy.Rank ──▶ tier 1, tier 2, …          replicas that the policy holds equally good
//	  │
//	  ▼                    room
//	least loaded of a tier ─────▶ reserve ──▶ confirm ──▶ Selection ──▶ Dispatch ──▶ Release
//	  │ all tiers full            one CAS     by the                                    │
//	  ▼                                       backend                                   │
//	wait queue ◀────────────────────────────────────────────────────────────────────────┘
//	  │                            hands the slot over without freeing it, to the
//	  │                            waiter that ranks the replica best, then the oldest
//	  ▼
//	error: queue timeout, disconnect, no replica left, router closed
//
// Load decides only within a tier, never across tiers. A replica that is down, draining or ejected is
// skipped and uses up no fallback; a full one is waited for. Only when no other replica is left is
// one tried that is down or ejected.
//
// Where an agent counts the slots of a replica, the router holds one place in the agent's own queue
// while requests wait here for that replica; the slot that it gets is handed over in the same way.
//
// # Concurrency
//
// A request that finds a slot takes no lock of the router: members, policy and limits are an
// immutable generation behind an atomic pointer, and a slot is reserved by the compare-and-swap of
// the replica's gate. Router.mu guards the wait queue and is held for no I/O. The queue has neither
// goroutine nor timer nor clock, so that [Router.Try] can drive it in virtual time.
//
// # A policy of one's own
//
// A [Policy] ranks and does nothing else. The rules:
//
//   - Rank yields available replicas only, each at most once. It may leave out some, which are then
//     neither chosen nor waited for by that request.
//   - Rank may be called from many goroutines. It waits for nothing and does no I/O: the router may
//     hold its mutex, so Rank must not call the router either.
//   - The sequence is lazy, since most requests use its first tier only. It may be ranged over twice
//     and then yields the same tiers, as far as replicas stay available.
//   - A policy does not count requests; Replica.Load and Replica.WeightedLoad do. One that learns from
//     its decisions implements [Learner].
//   - State that is to survive a change of membership is taken over from prev by the [Builder].
//   - A policy fails open: for a payload without the fields that it reads, it ranks by load.
package routers
