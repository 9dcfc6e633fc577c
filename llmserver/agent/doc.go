// Package agent counts the slots of one engine beside the engine itself, so that several ingresses
// share the engine without exceeding the engine's capacity.
//
// A [Server] stands in front of the engine, owns the slot [Table], implements the slot protocol,
// and forwards a request to the engine only in a slot: one reserved under the token in the
// request's header, or one free at that moment.
//
//	POST   /internal/slots          reserve   {"token":"<uuid>","lease_s":3,"wait_ms":0}
//	DELETE /internal/slots/{token}  release a reservation
//	GET    /internal/slots          read the counts
//	POST   a request for work       to the engine, in a slot
//	       anything else            to the engine (GET, management, cancel of a response)
//
// Callers may identify themselves with X-Slot-Holder. Every report then includes the caller's own
// share (num_own_requests, X-Slot-Own), which the caller cannot derive because calls may be
// reordered.
//
// [Dial] returns the llmserver.Backend for the ingress's side of the protocol. The laws cited in
// comments are those of docs/architecture.md.
package agent
