package e2e

import (
	"cmp"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// envInt returns a number from the environment, or n if the variable is not set.
func envInt(t *testing.T, name string, n int) int {
	t.Helper()
	if text := os.Getenv(name); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	return n
}

// After a storm all slots are released, no engine had more requests than slots, and no client got a
// wrong or truncated response that looked complete.
//
// Two ingresses share three agents over a network that drops and delays control calls and replies.
// 30 % of the clients disconnect before the end of the response. Agents are drained or killed and
// restarted at the same address; one ingress is killed half way and is not restarted.
//
// The default is a small storm. The full one takes some minutes:
//
//	BERTH_STORM_REQUESTS=100000 go test -race -run TestStorm -timeout 30m -v ./e2e
//
// BERTH_STORM_SEED repeats the random choices of an earlier run, but not the scheduling of
// goroutines.
func TestStormLeavesNoSlotBehind(t *testing.T) {
	t.Parallel()
	const slots, clients = 6, 48
	requests := envInt(t, "BERTH_STORM_REQUESTS", 3000)
	seed := uint64(envInt(t, "BERTH_STORM_SEED", 0))
	seed = cmp.Or(seed, rand.Uint64N(1<<32)+1)
	t.Logf("BERTH_STORM_SEED=%d", seed)

	faults := &networkFaults{rng: rand.New(rand.NewPCG(seed, 1<<32)), stopped: make(chan struct{})}
	fleet := startCountingEngines(t, 3)
	var agents []*agentProcess
	var urls []string
	for _, w := range fleet {
		a := startAgent(t, w.url, slots)
		agents, urls = append(agents, a), append(urls, startProxy(t, listenLoopback(t), a.address(), faults.allow).url())
	}
	config := agentConfig("max_queued_requests: 64, queue_timeout_s: 5, health_check_period_s: 1, request_router_config: {request_router_class: PowerOfTwoChoicesRouter}", urls...)
	survivor, victim := serve(t, config), serve(t, config)
	load := startStormClients(t, clients, requests, seed, survivor.url, victim.url)

	every, started := min(requests/8, 2000), func() int { return requests - int(max(load.remaining.Load(), 0)) }
	for step := 1; step*every < requests; step++ {
		eventually(t, "clients send the next requests", func() bool { return started() >= step*every })
		switch a := agents[step%len(agents)]; {
		case step == requests/every/2:
			load.excluded[1].Store(true)
			victim.kill()
		case step%2 == 1:
			a.restart(t, syscall.SIGKILL)
		default:
			a.restart(t, syscall.SIGTERM)
		}
	}
	load.running.Wait()
	close(faults.stopped)
	t.Logf("%v; %d control messages dropped, %d delayed", load, faults.lost.Load(), faults.delayed.Load())
	if load.complete.Load() < int64(requests)/3 {
		t.Errorf("%[2]d of %[1]d responses were complete, want at least a third", requests, load.complete.Load())
	}
	if faults.lost.Load() == 0 || load.aborted.Load() == 0 {
		t.Error("no control message was dropped or no client disconnected")
	}
	checkReleased(t, fleet, agents)
}

// checkReleased checks that all slots are released within a lease and that the engines never had
// more requests than slots.
func checkReleased(t *testing.T, fleet []*countingEngine, agents []*agentProcess) {
	t.Helper()
	start := time.Now()
	for _, a := range agents {
		eventually(t, "the agent's slots are released", func() bool { return a.slots(t) == slotCounts{} })
	}
	if took := time.Since(start); took > lease+timingMargin {
		t.Errorf("all slots were released after %v, which is longer than a lease", took)
	}
	for i, w := range fleet {
		agents[i].checkAccounting(t)
		if w.maxConcurrent() > agents[i].limit {
			t.Errorf("engine %d had %d concurrent requests, and has %d slots", i, w.maxConcurrent(), agents[i].limit)
		}
		eventually(t, "the engine is idle", func() bool { return w.Stats().InFlight == 0 })
	}
}
