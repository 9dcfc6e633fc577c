package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"berth/e2e/scenes"
)

// scenePolicies are the policies that the scenes are played with, in the order of the table.
var scenePolicies = []string{"RoundRobin", "PowerOfTwoChoices", "ConsistentHash", "PrefixCacheAffinity"}

// updateScenes makes the test replace the table in docs/operations.md.
var updateScenes = os.Getenv("BERTH_E2E_UPDATE") == "1"

// One of four replicas fails in each way that engines fail, with each policy and default settings
// otherwise. Clients notice next to nothing, the replica is out of use within seconds and is used
// again soon after the fault. The test is not parallel, so that the tests beside it do not take the
// time that is measured. With BERTH_E2E_UPDATE=1 it measures for longer and rewrites the table of
// docs/operations.md.
func TestScenesClientsNoticeNextToNothingOfAFailingReplica(t *testing.T) {
	options, slack, workers := scenes.Brief, 2.0, 14
	if updateScenes {
		options, workers = scenes.Full, 8
	}
	if len(raceFlags) > 0 { // everything takes several times as long
		options.Rate, slack = options.Rate/2, 2*slack
	}
	type cell struct {
		fault  scenes.Fault
		policy string
	}
	var cells []cell
	columns := map[string]scenes.Column{}
	for _, policy := range scenePolicies {
		columns[policy] = scenes.Column{Title: policy, Results: map[scenes.Fault]scenes.Result{}}
		for _, fault := range scenes.All {
			cells = append(cells, cell{fault, policy})
		}
	}
	slices.SortStableFunc(cells, func(a, b cell) int { // the longest first, so that none is left at the end
		return int(options.Duration(b.fault) - options.Duration(a.fault))
	})
	next := make(chan cell, len(cells))
	for _, c := range cells {
		next <- c
	}
	close(next)
	var mu sync.Mutex
	var playing sync.WaitGroup
	for range workers {
		playing.Go(func() {
			for c := range next {
				t.Run(fmt.Sprintf("%s/%s", c.fault, c.policy), func(t *testing.T) {
					r := playScene(t, c.fault, c.policy, options)
					t.Log(r)
					for _, missed := range r.Missed(slack) {
						t.Error(missed)
					}
					mu.Lock()
					defer mu.Unlock()
					columns[c.policy].Results[c.fault] = r
				})
			}
		})
	}
	playing.Wait()
	var ordered []scenes.Column
	for _, policy := range scenePolicies {
		ordered = append(ordered, columns[policy])
	}
	t.Logf("failed requests · failed streams (in progress at the fault) · seconds until out of use · until used again\n\n%s", scenes.Table(ordered))
	if updateScenes {
		if err := scenes.WriteSection("../docs/operations.md", "scenes", scenes.Table(ordered)); err != nil {
			t.Error(err)
		}
	}
}

// playScene plays a scene with berth.
func playScene(t *testing.T, fault scenes.Fault, policy string, options scenes.Options) scenes.Result {
	t.Helper()
	fleet, err := scenes.StartFleet(fault)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fleet.Close)
	b := serve(t, sceneConfig(policy, fleet.URLs()...))
	r, err := scenes.Run(t.Context(), b.url, fleet, options)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sceneConfig returns a configuration of the model demo with a policy and default settings
// otherwise.
func sceneConfig(policy string, engines ...string) string {
	var replicas []string
	for i, url := range engines {
		replicas = append(replicas, fmt.Sprintf("{id: engine-%d, url: %q}", i+1, url))
	}
	return loopbackConfig + fmt.Sprintf(`llm_configs:
- model_loading_config: {model_id: demo}
  deployment_config: {request_router_config: {request_router_class: %sRouter}}
  replicas: [%s]
`, policy, strings.Join(replicas, ", "))
}
