// Package agent counts the slots of one engine at the engine itself, so that
// several ingresses share it without ever passing its capacity.
//
// A [Server] stands in front of the engine. It owns the slot [Table], speaks the
// slot protocol, and lets a request through to the engine only in a slot: one that was
// reserved under the token that the request carries, or one that is free right then.
//
//	POST   /internal/slots          reserve   {"token":"<uuid>","lease_s":3,"wait_ms":0}
//	DELETE /internal/slots/{token}  give a reservation back
//	GET    /internal/slots          read the counts
//	POST   anything else            into a slot, to the engine
//	GET    anything else            to the engine
//
// Who calls may name itself by X-Slot-Holder; it is then told with every report how much of the count is
// its own (num_own_requests, X-Slot-Own), which it cannot know by itself: calls overtake each other.
//
// [Dial] makes the llmserver.Backend that speaks this protocol from the ingress's side.
package agent
