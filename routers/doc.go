// Package routers chooses a replica for each request and reserves a slot on it before anything is
// sent.
//
// A [Router] serves one model. [Router.Choose] returns a [Selection]: a replica and the slot held
// on it. A selection is dispatched at most once and released always:
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
//	error: queue full, overload, queue timeout, deadline, disconnect, no replica left, router closed
//
// Load decides only within a tier, never across tiers. Replicas down, draining or ejected are
// skipped and use up no fallback; full ones are waited for. Only when no other replica is left,
// those down or ejected are tried.
//
// Where an agent counts the slots of a replica, the router holds one place in the agent's own queue
// while requests wait here for that replica; a slot granted there is handed over in the same way.
//
// # Concurrency
//
// A request that finds a slot takes no lock of the router: members, policy and limits are an
// immutable generation behind an atomic pointer, and a slot is reserved by the compare-and-swap of
// the replica's gate. Router.mu guards the wait queue and is held for no I/O. The queue has neither
// goroutine nor timer, and its time comes from [Hooks].Now, so [Router.Try] can drive the queue in
// virtual time.
//
// # A policy of one's own
//
// A [Policy] ranks and does nothing else. The rules:
//
//   - Rank yields available replicas only, each at most once. A replica left out is neither chosen
//     nor waited for by the request.
//   - Rank may be called from many goroutines. Rank waits for nothing and does no I/O: the router
//     may hold its mutex, so Rank must not call the router either.
//   - The sequence is lazy, since most requests use only the first tier. A second range over the
//     sequence yields the same tiers, as far as replicas stay available.
//   - A policy does not count requests; Replica.Load and Replica.WeightedLoad do. A policy that
//     learns from its decisions implements [Learner].
//   - The [Builder] takes over from prev the state to survive a change of membership.
//   - A policy fails open: a payload without the fields in question is ranked by load.
package routers
