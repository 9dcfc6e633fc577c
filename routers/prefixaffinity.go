package routers

import (
	"errors"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"berth/llmserver"
)

// prefixAffinity sends a prompt to where its beginning was computed before, as
// long as that is worth the wait. It ranks replicas by a cost in blocks of the prompt:
//
//	what must be computed for the requests under way there, each counting for crowd mean prompts more
//	+ what was sent there before, as far as it is more than elsewhere
//	+ what must be computed for this prompt, each block times what it is worth to be spared
//
// The second part is what keeps the fleet even while it is idle, and over time: a conversation that
// is placed once stays and grows. It is bounded, so that a replica that is slow, or was away, owes
// little; and one that is new owes nothing, so that it is not flooded.
//
// Where no replica has room, what counts is which slot to wait for: the ones on
// the replicas with the longest match, then those with a shorter one.
type prefixAffinity struct {
	PrefixOptions
	members []*llmserver.Replica
	numbers []uint32 // of the members
	places  []int    // of the members, by number; -1 where there is none
	index   map[*llmserver.Replica]uint32
	first   int    // the member that goes first among equals
	unknown Policy // for prompts without blocks
	*knowledge
}

// PrefixOptions are the arguments of PrefixCacheAffinityRouter.
type PrefixOptions struct {
	MatchRate  float64 // the least part of a prompt that a match must cover to count
	Imbalance  float64 // no match counts while the loads of two replicas are further apart
	BlockBytes int     // routing text in a block
	KVBlocks   int     // that a replica's cache holds; 0: not known
	IndexBytes int     // memory for what is known, above minIndexBytes
}

// DefaultPrefixOptions are those of Ray Serve, and sizes. The block is the longest with which replays of
// text find at least 0.97 of what is possible, the engines knowing it by 16 tokens; shorter ones cost more to hash and to know:
//
//	                            64     128    256    512   1024   2048 bytes
//	agents, short prompts, 4   1.00   1.00   0.97   0.94   0.85   0.74 of what is possible, on 4 replicas
//	                       8   1.00   1.00   0.96   0.91   0.77   0.57 on 8
//	agents, long prompts,  8   1.00   1.00   1.00   1.00   1.00   1.00
//	single questions,      8   1.00   1.00   1.00   1.00   1.00   0.81
//	index per long prompt      143    111     79     47     23     11 marks, see chain
//
// A mark takes 16 to 25 bytes of the index where prompts are long, 70 where they are of a few blocks each.
var DefaultPrefixOptions = PrefixOptions{
	MatchRate: 0.1, Imbalance: math.Inf(1), BlockBytes: 128, IndexBytes: 64 << 20,
}

const (
	// recompute is how much more work a replica may have, for each block of a conversation that it saves,
	// than another one. It is far above 1 because what is computed again takes memory again, and the
	// conversation's later turns along. In replays of chat traffic 16 finds 0.97 of all that can be
	// found, 32 and 64 0.99. From each to the next the first token is 1 to 3 % later; with caches that are
	// too small for all, only from 48 on it finds more than rules that never move a conversation.
	recompute = 64
	// crowd is how many mean prompts a request under way counts for besides its own blocks, as its answer takes a slot and the
	// engine's time. Without it, replicas whose requests find much are full long before the others, and what they hold is
	// computed again elsewhere. In replays of chat traffic on 4 to 16 replicas, with a commonShare of 0, the mean time to the first
	// token is this part of the best other rule's:
	//
	//	                      0     0.5   1     2     4     8
	//	far from capacity    0.76  0.76  0.76  0.78  0.81  0.86
	//	within 5 % of it     0.93  0.87  0.90  0.85
	crowd = 2
	// maxLead is how much more a replica counts at most as having been sent, in
	// mean prompts: 4 to 16 do as well as no bound, 8 is the least that keeps a fleet of 16 even.
	maxLead = 8
	// meanOver is about how many prompts the mean is taken over.
	meanOver = 256
	// bytesPerToken is about how much text is a token.
	bytesPerToken = 4
)

// commonShare is what part of a replica's share of all chains may go on from a block that is worth as much as one of a
// conversation: one replica can take so many, if others take more of the rest.
const commonShare = 2. / 3

// worth is how much more work a replica may have for a block that it saves, where that many chains that are known go on from the
// block, and fair as many may. What more have in common, as a system prompt, is wanted again wherever it is computed,
// and to hold all who share it on one replica would be to leave the others idle: so it falls with the square. A document that few of
// all prompts are about stays in one place; a second copy would drive others out. In replays, the mean time to the first
// token is this part of the best other rule's, by commonShare:
//
//	                                 1     2/3   1/2   1/4   1/8   0
//	documents of 28,000 tokens     0.96  0.97  1.02  1.36  1.56  2.16
//	agents, chats, retrieval       1.07  0.87  0.87  0.87  0.87  0.94
func worth(branches uint32, fair float64) int {
	b := max(1, float64(branches)/max(1, fair))
	return max(1, int(recompute/(b*b)))
}

// Prefixed is a policy that goes by Payload.Blocks.
type Prefixed interface {
	BlockSize() int // the bytes of routing text in each
	// Index is what is held for what is known of the replicas, and how much of it had to make room so far.
	Index() (bytes int, evictions uint64)
}

// knowledge is what the policies of one router have learned, over all changes
// of membership.
type knowledge struct {
	mu       sync.Mutex // guards all; held for microseconds
	prefixes *prefixIndex
	work     []int   // of requests under way, in blocks, by number
	sent     []int   // uncached blocks sent, by number
	floor    int     // what a replica with less counts as having been sent: maxLead below the most
	prompts  int     // sent, up to meanOver
	prompt   float64 // the mean of their uncached blocks
}

// PrefixAffinity is the builder of prefix affinity with its own source of
// random numbers below n, which must be safe for concurrent use.
func PrefixAffinity(o PrefixOptions, intn func(n int) int) Builder {
	return func(members []*llmserver.Replica, prev Policy) Policy {
		p := &prefixAffinity{
			PrefixOptions: o,
			members:       members,
			numbers:       make([]uint32, len(members)),
			index:         make(map[*llmserver.Replica]uint32, len(members)),
			first:         intn(max(1, len(members))), // several ingresses do not go in step
			unknown:       PowerOfTwo(intn)(members, nil),
		}
		old, ok := prev.(*prefixAffinity)
		if ok && old.IndexBytes == o.IndexBytes && old.KVBlocks == o.KVBlocks && old.BlockBytes == o.BlockBytes {
			p.knowledge = old.knowledge
			p.succeed(old.index)
		} else {
			p.knowledge = &knowledge{prefixes: newPrefixIndex(o.IndexBytes, o.KVBlocks)}
			p.succeed(nil)
		}
		return p
	}
}

// succeed keeps the numbers of those that stay, forgets who is gone, and enters
// who is new.
func (p *prefixAffinity) succeed(old map[*llmserver.Replica]uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	most := 0
	for _, r := range p.members {
		if number, ok := old[r]; ok {
			p.index[r] = number
			most = max(most, p.had(number))
		}
	}
	for r, number := range old {
		if _, stays := p.index[r]; !stays {
			p.prefixes.leave(number)
		}
	}
	for i, r := range p.members {
		number, stays := p.index[r]
		if !stays {
			number = p.prefixes.enter(r)
			p.index[r] = number
			if int(number) == len(p.work) {
				p.work, p.sent = append(p.work, 0), append(p.sent, 0)
			}
			p.work[number], p.sent[number] = 0, most
		}
		p.numbers[i] = number
	}
	p.places = slices.Repeat([]int{-1}, len(p.work))
	for i, number := range p.numbers {
		p.places[number] = i
	}
}

func prefixAffinityClass(kwargs map[string]any) (Builder, error) {
	o, tokens := DefaultPrefixOptions, 0
	a := arguments{class: "PrefixCacheAffinityRouter", given: kwargs}
	a.number("match_rate_threshold", &o.MatchRate, 0, 1)
	a.number("imbalanced_threshold", &o.Imbalance, 0, math.Inf(1))
	a.integer("block_bytes", &o.BlockBytes, 64, 1<<20)
	a.integer("kv_cache_tokens", &tokens, 0, math.MaxInt32)
	a.integer("prefix_index_bytes", &o.IndexBytes, minIndexBytes, math.MaxInt32)
	// What Ray's own needs to keep its memory in bounds.
	a.ignore("do_eviction", "eviction_threshold_chars", "eviction_target_chars", "eviction_interval_secs")
	if err := a.check(); err != nil {
		return nil, err
	}
	o.KVBlocks = tokens * bytesPerToken / o.BlockBytes
	return PrefixAffinity(o, rand.IntN), nil
}

func (p *prefixAffinity) BlockSize() int { return p.BlockBytes }

func (p *prefixAffinity) Index() (bytes int, evictions uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.prefixes.bytes(), p.prefixes.evictions
}

func (p *prefixAffinity) Rank(payload *Payload) iter.Seq[Tier] {
	if len(payload.Blocks) == 0 {
		return p.unknown.Rank(payload)
	}
	v := &view{prefixAffinity: p, blocks: payload.Blocks, best: -1}
	v.full = !slices.ContainsFunc(p.members, (*llmserver.Replica).HasRoom)
	v.imbalanced = p.imbalanced()
	if v.full {
		return v.alike
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	v.look()
	v.best = v.pick()
	return v.cheapest
}

// Reserved learns that the prompt goes to r. What does not get an answer is
// unlearned, and where no connection can be made nothing is held.
func (p *prefixAffinity) Reserved(payload *Payload, r *llmserver.Replica) (matched int, settled func(Outcome)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	number, ok := p.index[r]
	if !ok || p.prefixes.holders[number].replica != r {
		return 0, nil // it left while it was chosen
	}
	matched, c := p.prefixes.learn(number, payload.Blocks)
	// There is always a block to be computed: the one that the prompt ends in.
	uncached := len(payload.Blocks) - matched + 1
	p.send(number, uncached)
	work := uncached + int(crowd*p.prompt)
	p.work[number] += work
	return matched, func(o Outcome) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if later(p.prefixes.holders[number].since, c.turn) {
			return // the number is another's now
		}
		p.work[number] -= work
		if errors.Is(o.Err, llmserver.ErrNoConnection) {
			p.prefixes.forget(number)
			return
		}
		p.prefixes.settle(c, o.Answered)
	}
}

// send counts blocks as sent, and has nobody lag too far behind.
func (k *knowledge) send(number uint32, blocks int) {
	k.prompts = min(k.prompts+1, meanOver)
	k.prompt += (float64(blocks) - k.prompt) / float64(k.prompts)
	k.sent[number] = k.had(number) + blocks
	k.floor = max(k.floor, k.sent[number]-int(maxLead*k.prompt))
}

// had is what a replica counts as having been sent.
func (k *knowledge) had(number uint32) int { return max(k.sent[number], k.floor) }
