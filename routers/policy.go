package routers

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"berth/llmserver"
)

// Tier is a set of replicas that a policy holds equally good; the one with
// the least load is taken, the first of equals.
type Tier struct {
	Replicas []*llmserver.Replica
	// Limit > 0 has a slot reserved directly only where fewer are ongoing.
	// Who waits in line waits for any free slot of the tier.
	Limit int
}

// Policy ranks the replicas that it was built with.
type Policy interface {
	// Rank yields tiers, the best first: each replica that is available at
	// most once, none that is not. It is lazy, waits for nothing and may be called
	// from many goroutines. What it returns may be ranged over twice and then ranks
	// alike, and must not be used after a later Rank for the same payload.
	Rank(p *Payload) iter.Seq[Tier]
}

// Builder makes the policy of a new membership. It is called only when the
// membership or the configuration changes, so it may build what is costly. prev is the
// policy it takes over from, nil at first; it may be of another kind.
type Builder func(members []*llmserver.Replica, prev Policy) Policy

// Learner is a policy that learns from where requests go.
type Learner interface {
	// Reserved hears that a slot was reserved, and says how many of the payload's blocks it held the
	// replica to know before. What it returns, unless nil, is called exactly once, when that slot is released.
	Reserved(p *Payload, r *llmserver.Replica) (matched int, settled func(Outcome))
}

// BlockSizer is an optional interface of policies that read Payload.Blocks.
type BlockSizer interface {
	BlockSize() int // bytes of routing text in a block, above zero
}

// Introspector is an optional interface of policies that explain themselves to operators. Its methods
// may be called from any goroutine.
type Introspector interface {
	// Stats calls report for each figure that the policy has, by one of the names below. Other
	// names are ignored.
	Stats(report func(name string, value float64))
	// Preferred returns the replica that the policy would choose whatever its state and load, or
	// nil. It may set Candidate.Matched.
	Preferred(p *Payload, candidates []Candidate) *llmserver.Replica
}

// The names of the figures that an Introspector may report.
const (
	StatIndexBytes     = "prefix_index_bytes"           // gauge: memory of the prefix index
	StatIndexEvictions = "prefix_index_evictions_total" // counter: checkpoints evicted to make room
	StatRingRebuilds   = "ring_rebuilds_total"          // counter: hash rings built for a new membership
)

// DefaultPolicy is the class used where none is configured.
const DefaultPolicy = "RoundRobinRouter"

// classes are the policies by the names they have in configuration.
var classes = map[string]func(kwargs map[string]any) (Builder, error){
	"RoundRobinRouter":               roundRobinClass,
	"PowerOfTwoChoicesRouter":        powerOfTwoClass,
	"PowerOfTwoChoicesRequestRouter": powerOfTwoClass, // Ray Serve's own name
	"ConsistentHashRouter":           consistentHashClass,
	"PrefixCacheAffinityRouter":      prefixAffinityClass,
}

// Lookup finds the policy of a class and checks its arguments. Of a class's
// name only what follows the last dot or colon counts, so an import path will do.
func Lookup(class string, kwargs map[string]any) (Builder, error) {
	name := class[strings.LastIndexAny(class, ".:")+1:]
	if name == "" {
		name = DefaultPolicy
	}
	make, ok := classes[name]
	if !ok {
		known := slices.Sorted(maps.Keys(classes))
		return nil, fmt.Errorf("there is no router class %q; the known ones are %s", name, strings.Join(known, ", "))
	}
	return make(kwargs)
}

// noArguments refuses arguments that a class does not have.
func noArguments(class string, kwargs map[string]any) error {
	if len(kwargs) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(kwargs))
	return fmt.Errorf("%s takes no arguments; remove %s", class, strings.Join(names, ", "))
}
