package routers

import (
	"time"

	"berth/llmserver"
)

// Payload is the part of a request visible to routing. The request's goroutine owns the Payload;
// the exported fields but Waited do not change while the request is routed, so policies may read
// them under Router.mu on other goroutines.
type Payload struct {
	RequestID string // also the name of the slot's holder
	Model     string // configured ID, not an alias
	Adapter   string // LoRA adapter, by the engine's name for it; empty for the model itself
	Text      []byte // raw JSON of the prompt; empty if there is none
	SessionID string // client's name for the conversation; empty if not given

	// Blocks are chained hashes of the prompt's whole blocks: each covers one block, all blocks
	// before, and the seed of the chain, made of everything else by which a cache entry fits or not
	// (model, adapter, salt, tools). BlockSizer returns the size of a block. Empty if the prompt is
	// not known.
	Blocks []uint64

	// PinnedTo, unless nil, is the only replica able to serve the request, the holder of the state
	// to be continued. The policy is not asked, and a full replica is waited for.
	PinnedTo *llmserver.Replica

	Stream bool // the client asked for events, so the silence of a replica is informative

	Waited time.Duration // time in the queue so far, added up by the router on the request's goroutine

	// Request, unless nil, recognizes a request sent again, when failures are counted.
	Request llmserver.Fingerprinter

	// arrival is the request's number in order of arrival in the queue, kept when the request
	// queues again. 0: never queued. Router.mu guards it.
	arrival uint64
}
