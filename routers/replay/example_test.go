package replay_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"berth/llmserver/simulated"
	"berth/routers/replay"
)

// Two sessions of three turns each, recorded in Mooncake's format: a turn starts with the blocks of
// the turn before. Round robin moves the sessions between the replicas; prefix affinity keeps them.
func Example() {
	const recorded = `{"timestamp": 0, "input_length": 1500, "output_length": 20, "hash_ids": [1, 2]}
{"timestamp": 1000, "input_length": 1500, "output_length": 20, "hash_ids": [11, 12]}
{"timestamp": 5000, "input_length": 2500, "output_length": 20, "hash_ids": [11, 12, 13, 14]}
{"timestamp": 6000, "input_length": 2500, "output_length": 20, "hash_ids": [1, 2, 3, 4]}
{"timestamp": 10000, "input_length": 3500, "output_length": 20, "hash_ids": [1, 2, 3, 4, 5, 6]}
{"timestamp": 11000, "input_length": 3500, "output_length": 20, "hash_ids": [11, 12, 13, 14, 15, 16]}
`
	trace, err := replay.Read(strings.NewReader(recorded), replay.TextBlock)
	if err != nil {
		fmt.Println(err)
		return
	}
	policies, err := replay.FindPolicies("RoundRobinRouter", "PrefixCacheAffinityRouter")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, policy := range policies {
		result, err := replay.Run(context.Background(), trace, policy, replay.Options{
			Replicas:   2,
			MaxOngoing: 8,
			Cost:       simulated.Cost{PrefillTokensPerSecond: 8000, DecodeStep: 6 * time.Millisecond, DecodeStepPerRequest: time.Millisecond},
			Speed:      1,
			Seed:       1,
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: %d requests, hit rate %.2f of %.2f, mean TTFT %.0f ms\n",
			result.Policy, result.Requests, result.HitRate, result.Ceiling, result.TTFTMean)
	}
	// Output:
	// RoundRobinRouter: 6 requests, hit rate 0.14 of 0.41, mean TTFT 277 ms
	// PrefixCacheAffinityRouter: 6 requests, hit rate 0.41 of 0.41, mean TTFT 192 ms
}
