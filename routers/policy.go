package routers

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"berth/llmserver"
)

// Tier is a set of replicas held equally good by a policy. The one with the least load is chosen,
// the first of equals.
type Tier struct {
	Replicas []*llmserver.Replica
	// Limit > 0 bounds the load: a slot is reserved only while fewer requests are ongoing on the
	// replica, checked in the step that reserves it. Queued requests ignore the limit, since
	// otherwise a slot could stay free while they wait.
	Limit int
}

// Policy ranks the replicas with which it was built. The package comment has the rules.
type Policy interface {
	// Rank yields tiers, the best first. The result may be ranged over more than once, and must not
	// be used after a later Rank for the same payload.
	Rank(p *Payload) iter.Seq[Tier]
}

// Builder returns the policy for a membership. The router calls the Builder when membership or
// configuration change, one call at a time and without a lock, so costly work is fine. members must
// not be changed; prev is the replaced policy, perhaps of another kind, nil at first, and stays in
// use by requests in flight.
type Builder func(members []*llmserver.Replica, prev Policy) Policy

// Learner is an optional interface of policies that learn from the placement of requests.
type Learner interface {
	// Reserved is called for each confirmed slot, and returns the number of the payload's blocks
	// believed to be cached on the replica. settled, unless nil, is called exactly once, when the
	// slot is released. r may have left the membership in between.
	Reserved(p *Payload, r *llmserver.Replica) (matched int, settled func(Outcome))
}

// BlockSizer is an optional interface of policies that read Payload.Blocks.
type BlockSizer interface {
	BlockSize() int // bytes of routing text in a block, above zero
}

// Introspector is an optional interface of policies with figures and explanations for operators.
// The methods may be called from any goroutine.
type Introspector interface {
	// Stats calls report for each figure of the policy, by one of the names below. Other names are
	// ignored.
	Stats(report func(name string, value float64))
	// Preferred returns the policy's choice regardless of state and load, or nil. Preferred may set
	// Candidate.Matched.
	Preferred(p *Payload, candidates []Candidate) *llmserver.Replica
}

// The names of an Introspector's figures.
const (
	StatIndexBytes     = "prefix_index_bytes"           // gauge: memory of the prefix index
	StatIndexEvictions = "prefix_index_evictions_total" // counter: checkpoints evicted to make room
	StatRingRebuilds   = "ring_rebuilds_total"          // counter: hash rings built for a new membership
)

// DefaultPolicy is the class used if none is configured.
const DefaultPolicy = "RoundRobinRouter"

// classes are the constructors of builders by class name.
var classes = map[string]func(kwargs map[string]any) (Builder, error){
	"RoundRobinRouter":               roundRobinClass,
	"PowerOfTwoChoicesRouter":        powerOfTwoClass,
	"PowerOfTwoChoicesRequestRouter": powerOfTwoClass, // Ray Serve's name
	"ConsistentHashRouter":           consistentHashClass,
	"PrefixCacheAffinityRouter":      prefixAffinityClass,
}

// Lookup returns the builder for a class and checks its arguments. Only the part of the name after
// the last dot or colon counts, so an import path works. Unknown classes and arguments, and values
// of a wrong type or out of range, are errors.
func Lookup(class string, kwargs map[string]any) (Builder, error) {
	name := class[strings.LastIndexAny(class, ".:")+1:]
	if name == "" {
		name = DefaultPolicy
	}
	newBuilder, ok := classes[name]
	if !ok {
		known := slices.Sorted(maps.Keys(classes))
		return nil, fmt.Errorf("there is no router class %q; the known ones are %s", name, strings.Join(known, ", "))
	}
	return newBuilder(kwargs)
}
