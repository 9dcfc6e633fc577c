package replay

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"berth/routers"
)

// A Policy is a routing policy for a replay.
type Policy struct {
	Name  string
	build func(random *rand.Rand, o *Options, blockTokens int) routers.Builder
}

// Policies holds berth's policies under the names of their classes, then baselines for comparison.
var Policies = []Policy{
	{"RoundRobinRouter", func(random *rand.Rand, _ *Options, _ int) routers.Builder {
		return routers.RoundRobin(random.Uint64() >> 32)
	}},
	{"PowerOfTwoChoicesRouter", func(random *rand.Rand, _ *Options, _ int) routers.Builder {
		return routers.PowerOfTwo(random.IntN)
	}},
	{"ConsistentHashRouter", func(random *rand.Rand, _ *Options, _ int) routers.Builder {
		return routers.ConsistentHash(routers.DefaultHashOptions, random.Uint64)
	}},
	{"PrefixCacheAffinityRouter", func(random *rand.Rand, o *Options, blockTokens int) routers.Builder {
		options := routers.DefaultPrefixOptions
		options.KVBlocks = o.KVTokens / blockTokens
		return routers.PrefixAffinity(options, random.IntN)
	}},
	{"random", func(random *rand.Rand, _ *Options, _ int) routers.Builder { return newRandom(random) }},
	{"least-requests", baseline(leastRequests)},
	{"chwbl", func(random *rand.Rand, _ *Options, _ int) routers.Builder { return newCHWBL(random) }},
	{"tree", baseline(tree)},
	{"scored-blocks", baseline(scoredBlocks)},
	{"longest-match", baseline(longestMatch)},
}

// FindPolicies returns the policies with these names; "all" stands for all of them.
func FindPolicies(names ...string) ([]Policy, error) {
	var found []Policy
	for _, name := range names {
		if name == "all" {
			return Policies, nil
		}
		i := slices.IndexFunc(Policies, func(p Policy) bool { return p.Name == name })
		if i < 0 {
			var known []string
			for _, p := range Policies {
				known = append(known, p.Name)
			}
			return nil, fmt.Errorf("no policy %q; known are all, %s", name, strings.Join(known, ", "))
		}
		found = append(found, Policies[i])
	}
	return found, nil
}
