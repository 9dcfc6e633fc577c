// Package replay runs recorded traffic through the routing policies in virtual time, so that an
// operator can choose a policy by evidence.
//
// It is a discrete-event simulation: the router, its policies, gates and queue are those that serve
// requests, and each replica is the batch of the simulated engine. Nothing in it reads a clock, and
// all random numbers come from the seed, so the same trace, options and seed give the same result.
package replay
