package routers

import (
	"time"

	"berth/llmserver"
)

// Payload is what routing may know of a request. It belongs to the request
// and is read by policies; its maker changes nothing in it while the request is routed.
type Payload struct {
	RequestID string // also names the slot's holder
	Model     string // the configured id, not an alias
	Adapter   string // of the model, by the name that the engine has for it; empty for the model itself
	Text      []byte // the raw JSON of what prompts the model, until an answer begins; empty if there is none
	SessionID string // what the client calls its conversation; empty if it does not say

	// Blocks are chained hashes of the prompt's whole blocks, from its start:
	// each stands for its block and all before it, and for whatever else makes an
	// engine's cache not fit (model, adapter, salt, tools), which the hasher takes as the
	// seed of the chain. All blocks are of one size; empty if the prompt is not known.
	Blocks []uint64

	// PinnedTo, unless nil, is the one replica that can serve the request, as it holds what the
	// request goes on with. The policy is not asked then, and if it is full it is waited for.
	PinnedTo *llmserver.Replica

	Stream bool // the client wants events: silence before the first is worth a thought

	Waited time.Duration // spent in line so far; the router adds to it

	// place is the request's place in line, kept when it has to line up again.
	place uint64
}
