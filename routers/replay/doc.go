// Package replay runs recorded traffic through the routing policies in virtual time, so that
// operators can choose a policy by evidence.
//
// A replay is a discrete-event simulation: the router, the policies, the gates and the queue are
// those of the ingress, and each replica is the batch of the simulated engine. No code here reads a
// clock, and all random numbers come from the seed, so the same trace, options and seed give the
// same result.
package replay
