// Package llmserver is the replica side of berth: replicas, the slots on
// them, and the ways to reach them.
//
// A [Replica] is one LLM server process. Its [Slot]s are units of its
// capacity; a request holds exactly one from before it is sent until its
// answer is over. Check and count are one atomic step on the replica's gate, so
// capacity cannot be passed, and each slot's life is a chain of single
// compare-and-swap edges, so it cannot leak or be given back twice.
//
// Whether a replica is up is its health's to say, by probes and by requests that could
// not connect; whether one that is up does its work is its circuit's. Neither takes it out
// of its set.
//
// A [Backend] is how a replica is spoken to: package http1 for an engine over plain TCP, [HTTP] for
// one behind TLS, package agent for an agent over either of them, or a fake in tests. A [Pool] turns full sets of [Endpoint]s into
// replicas by identity and keeps an eye on their health.
package llmserver
