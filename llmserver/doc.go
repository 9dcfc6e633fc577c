// Package llmserver implements the replica side of the ingress: replicas, their slots, their
// health, and the backends that reach them.
//
// A [Replica] is one LLM server process, and a [Slot] is one unit of its capacity. A request holds
// exactly one slot, from before the dispatch until the end of the response. The replica's gate
// checks and counts in one atomic step, so the capacity cannot be exceeded. Every state change of a
// slot is a single compare-and-swap, so a slot can neither leak nor be released twice.
//
// Health (probes and failed connects) decides whether a replica is up. A [Cohort] compares the
// failures of replicas that serve the same requests, and opens the circuit of one that differs; the
// circuit decides whether an up replica gets traffic. Neither removes a replica from the set.
//
// A [Backend] reaches one replica: [HTTP] for an engine, over package http1 or, behind TLS,
// net/http, package agent for an agent over either of them, or a fake in tests. A [Pool] turns
// full sets of [Endpoint] values into replicas by identity and probes them.
package llmserver
