// Package replay runs recorded traffic through the routing policies in virtual
// time, so that an operator can choose between them by evidence.
//
// It is a discrete-event simulation: the router, its policies, gates and waiting line are
// those that serve requests, and each replica is the simulated engine's batch. Nothing in it
// reads a clock or draws a number that the seed does not decide, so the same trace,
// options and seed give the same result.
package replay
