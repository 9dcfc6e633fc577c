// Package routers chooses a replica for each request and holds a slot on it.
//
// A [Router] serves one model. [Router.Choose] ranks the replicas by the
// model's [Policy], reserves a slot on the best one that has room, and waits in line
// if none has. What it returns, a [Selection], is dispatched at most once and released
// always:
//
//	sel, err := router.Choose(ctx, payload)
//	if err != nil { … }
//	defer sel.Release()
//	resp, err := sel.Dispatch(req)
//
// A policy ranks and does nothing else: no I/O, no waiting, no counting. Load
// decides only inside the tiers that it gives.
package routers
