package routers

import (
	"errors"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"berth/llmserver"
	"berth/routers/prefixindex"
)

// prefixAffinity sends a prompt to the replica with most of the prompt cached, unless the wait
// there costs more than the cache saves. The ranking orders replicas by a cost in blocks of prompt
// text:
//
//	blocks to compute for the in-flight requests there, plus inFlightPenalty mean prompts for each
//	+ blocks sent there before, as far as they exceed those sent to other replicas
//	− the value of the blocks of this prompt that are cached there
//
// The second term keeps the fleet balanced while it is idle, and over time: a conversation stays on
// its first replica, and grows. The term is bounded, so that a replica once slow or away is not
// flooded afterwards; a new replica starts at the largest value for the same reason.
//
// If no replica has room, the ranking decides the replicas to wait for: those with the longest
// match first, then the shorter ones.
//
// Values and members are immutable; learned is shared by all policies of one router.
type prefixAffinity struct {
	PrefixOptions
	members   []*llmserver.Replica
	holders   map[*llmserver.Replica]prefixindex.Holder
	numbers   []uint32 // Holder.Number of each member
	positions []int    // index in members by number; -1: not a member
	first     int      // index of the first member among equals
	noPrefix  Policy   // for payloads without blocks
	*learned
}

// PrefixOptions are the arguments of PrefixCacheAffinityRouter.
type PrefixOptions struct {
	MatchRate  float64 // share of a prompt below which a match does not count, 0 to 1
	Imbalance  float64 // matches do not count while the loads of two replicas differ by more requests
	BlockBytes int     // bytes of routing text in a block
	KVBlocks   int     // capacity of a replica's KV cache in blocks; 0: not known
	IndexBytes int     // memory for the index, at least prefixindex.MinBytes
}

// DefaultPrefixOptions are the defaults of Ray Serve, with this package's sizes. 128 bytes is the
// longest block with which even short agent prompts find nearly everything cached by the engines;
// shorter blocks cost more to hash and to store. A checkpoint takes 16 to 70 bytes of the index.
var DefaultPrefixOptions = PrefixOptions{
	MatchRate: 0.1, Imbalance: math.Inf(1), BlockBytes: 128, IndexBytes: 64 << 20,
}

const (
	// recompute is the extra queued work, in blocks, accepted to reuse one cached block. The value
	// is far above 1 because a recomputed block takes cache memory again, and the later turns of
	// the conversation follow.
	recompute = 64
	// inFlightPenalty is the cost of an in-flight request in mean prompts, besides its own blocks:
	// its response takes a slot and the engine's time. Without it, replicas whose requests match
	// well fill up long before the others, and their content is computed again elsewhere.
	inFlightPenalty = 2
	// maxSentLead bounds the difference between replicas in blocks sent, in mean prompts.
	maxSentLead = 8
	// meanWindow is the number of prompts over which the mean is taken, about.
	meanWindow = 256
	// bytesPerToken is the length of a token of text, about.
	bytesPerToken = 4
)

// sharedQuota is the share of a replica's fair part of all prompts; a block keeps its full value
// while at most that many prompts continue from the block.
const sharedQuota = 2. / 3

// blockValue returns how much extra queued work is accepted on a replica to reuse one of its cached
// blocks. branches is the number of known prompts that continue from the block. Up to the quota the
// value is full, so that a document shared by few of all prompts stays in one place. Beyond the
// quota the value falls with the square: a system prompt shared by most requests is soon cached
// everywhere, and keeping all of them on one replica would leave the others idle. blockValue is a
// prefixindex.ValueFunc.
func blockValue(branches, prompts uint32, holders int) int {
	quota := sharedQuota * float64(prompts) / float64(max(1, holders))
	excess := max(1, float64(branches)/max(1, quota))
	return max(1, int(recompute/(excess*excess)))
}

// learned is the state shared by the policies of one router across changes of membership.
type learned struct {
	mu         sync.Mutex // guards all below; held for microseconds; the only callback under it is blockValue, which is pure
	prefixes   *prefixindex.Index
	work       []int   // by number: cost in blocks of the in-flight requests
	fresh      []bool  // by number: added to others, restarted or found hanging, and without a prompt since
	sent       []int   // by number: uncached blocks sent, before sentFloor applies
	sentFloor  int     // lower bound of sent: maxSentLead below the largest
	prompts    int     // prompts sent, up to meanWindow
	meanPrompt float64 // mean number of their uncached blocks
}

// PrefixAffinity returns the builder of a prefix affinity policy. intn returns a random number
// below n and must be safe for concurrent use.
func PrefixAffinity(o PrefixOptions, intn func(n int) int) Builder {
	return func(members []*llmserver.Replica, prev Policy) Policy {
		p := &prefixAffinity{
			PrefixOptions: o,
			members:       members,
			holders:       make(map[*llmserver.Replica]prefixindex.Holder, len(members)),
			numbers:       make([]uint32, len(members)),
			first:         intn(max(1, len(members))), // so that ingresses do not fill replicas in step
			noPrefix:      PowerOfTwo(intn)(members, nil),
		}
		old, ok := prev.(*prefixAffinity)
		if ok && old.IndexBytes == o.IndexBytes && old.KVBlocks == o.KVBlocks && old.BlockBytes == o.BlockBytes {
			p.learned = old.learned
			p.inherit(old.holders)
		} else {
			p.learned = &learned{prefixes: prefixindex.New(o.IndexBytes, o.KVBlocks, blockValue)}
			p.inherit(nil)
		}
		return p
	}
}

// inherit keeps the holders of staying members, removes those of replicas that left, and adds the
// new ones. A new replica starts with the largest sent count.
func (p *prefixAffinity) inherit(old map[*llmserver.Replica]prefixindex.Holder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	most := 0
	for _, r := range p.members {
		if h, ok := old[r]; ok {
			p.holders[r] = h
			most = max(most, p.sentBlocks(h.Number()))
		}
	}
	for r, h := range old {
		if _, stays := p.holders[r]; !stays {
			p.prefixes.Remove(h)
		}
	}
	for i, r := range p.members {
		h, stays := p.holders[r]
		if !stays {
			h = p.prefixes.Add()
			p.holders[r] = h
			if int(h.Number()) == len(p.work) {
				p.work, p.sent, p.fresh = append(p.work, 0), append(p.sent, 0), append(p.fresh, false)
			}
			p.work[h.Number()], p.sent[h.Number()], p.fresh[h.Number()] = 0, most, len(old) > 0
		}
		p.numbers[i] = h.Number()
	}
	p.positions = slices.Repeat([]int{-1}, len(p.work))
	for i, number := range p.numbers {
		p.positions[number] = i
	}
}

func prefixAffinityClass(kwargs map[string]any) (Builder, error) {
	o, tokens := DefaultPrefixOptions, 0
	a := arguments{class: "PrefixCacheAffinityRouter", values: kwargs}
	a.number("match_rate_threshold", &o.MatchRate, 0, 1)
	a.number("imbalanced_threshold", &o.Imbalance, 0, math.Inf(1))
	a.integer("block_bytes", &o.BlockBytes, 64, 1<<20)
	a.integer("kv_cache_tokens", &tokens, 0, math.MaxInt32)
	a.integer("prefix_index_bytes", &o.IndexBytes, prefixindex.MinBytes, math.MaxInt32)
	// Ray's implementation needs these to bound its memory.
	a.ignore("do_eviction", "eviction_threshold_chars", "eviction_target_chars", "eviction_interval_secs")
	if err := a.validate(); err != nil {
		return nil, err
	}
	o.KVBlocks = tokens * bytesPerToken / o.BlockBytes
	return PrefixAffinity(o, rand.IntN), nil
}

// BlockSize implements BlockSizer.
func (p *prefixAffinity) BlockSize() int { return p.BlockBytes }

// Stats implements Introspector.
func (p *prefixAffinity) Stats(report func(name string, value float64)) {
	p.mu.Lock()
	bytes, evictions := p.prefixes.Bytes(), p.prefixes.Evictions()
	p.mu.Unlock()
	report(StatIndexBytes, float64(bytes))
	report(StatIndexEvictions, float64(evictions))
}

func (p *prefixAffinity) Rank(payload *Payload) iter.Seq[Tier] {
	if len(payload.Blocks) == 0 {
		return p.noPrefix.Rank(payload)
	}
	v := &prefixRanking{prefixAffinity: p, blocks: payload.Blocks, best: -1}
	v.full = !slices.ContainsFunc(p.members, (*llmserver.Replica).HasRoom)
	v.imbalanced = p.imbalanced()
	if v.full {
		return v.tiesTogether
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	v.match()
	v.best = v.cheapest()
	return v.bestFirst
}

// Reserved records the prompt as sent to r. Unless the request is served, the record is rolled
// back; without a connection all records of r are dropped: the process is gone, and the cache with
// it.
func (p *prefixAffinity) Reserved(payload *Payload, r *llmserver.Replica) (matched int, settled func(Outcome)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, ok := p.holders[r]
	if !ok || !p.prefixes.Has(h) {
		return 0, nil // r left between ranking and reservation
	}
	matched, pending := p.prefixes.Insert(h, payload.Blocks)
	p.fresh[h.Number()] = false
	// At least one block is computed: the last one of a prompt is never complete.
	uncached := len(payload.Blocks) - matched + 1
	p.addSent(h.Number(), uncached)
	work := uncached + int(inFlightPenalty*p.meanPrompt)
	p.work[h.Number()] += work
	return matched, func(o Outcome) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.prefixes.Has(h) {
			return // r has left, and its number may belong to another replica
		}
		p.work[h.Number()] -= work
		if errors.Is(o.Err, llmserver.ErrNoConnection) {
			p.prefixes.Forget(h)
			p.fresh[h.Number()] = true
			return
		}
		if errors.Is(o.Err, llmserver.ErrSilent) { // its conversations go on elsewhere
			p.fresh[h.Number()] = true
		}
		p.prefixes.Settle(pending, o.Served)
	}
}

// addSent counts blocks as sent to a replica and moves the floor up. mu is held.
func (l *learned) addSent(number uint32, blocks int) {
	l.prompts = min(l.prompts+1, meanWindow)
	l.meanPrompt += (float64(blocks) - l.meanPrompt) / float64(l.prompts)
	l.sent[number] = l.sentBlocks(number) + blocks
	l.sentFloor = max(l.sentFloor, l.sent[number]-int(maxSentLead*l.meanPrompt))
}

// sentBlocks returns the sent count of a replica, with sentFloor applied. mu is held.
func (l *learned) sentBlocks(number uint32) int { return max(l.sent[number], l.sentFloor) }
