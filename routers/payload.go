package routers

import (
	"time"

	"berth/llmserver"
)

// Payload is the part of a request that routing may read. It belongs to the request's goroutine; the
// exported fields but Waited do not change while the request is routed, so that policies may read
// them under Router.mu on other goroutines.
type Payload struct {
	RequestID string // also the name of the slot's holder
	Model     string // configured ID, not an alias
	Adapter   string // LoRA adapter, by the engine's name for it; empty for the model itself
	Text      []byte // raw JSON of the prompt; empty if there is none
	SessionID string // client's name for the conversation; empty if not given

	// Blocks are chained hashes of the prompt's whole blocks: each stands for its block and all before
	// it, and for whatever else decides whether a cache entry fits (model, adapter, salt, tools), which
	// seeds the chain. All blocks have the size that BlockSizer returns; empty if the prompt is not
	// known.
	Blocks []uint64

	// PinnedTo, unless nil, is the only replica that can serve the request, since it holds state that
	// the request continues. The policy is not asked, and if the replica is full it is waited for.
	PinnedTo *llmserver.Replica

	Stream bool // the client asked for events, so the silence of a replica is informative

	Waited time.Duration // time in the queue so far; the router adds to it on the request's goroutine

	// arrival is the request's number in order of arrival in the queue, kept when it queues again. 0: it
	// has none. Router.mu guards it.
	arrival uint64
}
