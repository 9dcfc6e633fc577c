package e2e

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// chaos is one run: the fleet, the counters and the findings.
type chaos struct {
	seed     uint64
	logs     string // directory of logs and configurations
	gateways []*gateway
	agents   []*unit
	engines  []*unit // first those with agents
	pages    http.Client
	counts   counters
	findings findings
	gate     sync.RWMutex // read-locked during each request, reload and fault

	mu             sync.Mutex
	times          []time.Duration // of complete responses
	longestQuiesce time.Duration
}

// counters is a set of counters by name.
type counters struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counters) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[name]++
}

func (c *counters) get(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[name]
}

// findings are failed checks by kind, with the first examples of each.
type findings struct {
	counters
	examples map[string][]string
}

func (f *findings) add(kind, format string, args ...any) {
	f.counters.add(kind)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.examples == nil {
		f.examples = map[string][]string{}
	}
	if len(f.examples[kind]) < 3 {
		f.examples[kind] = append(f.examples[kind], fmt.Sprintf(format, args...))
	}
}

// report fails the test with all findings.
func (f *findings) report(t *testing.T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(f.n)) {
		t.Errorf("%s, %d times:\n%s", kind, f.n[kind], strings.Join(f.examples[kind], "\n"))
	}
}

// During random faults of processes, disconnects and reloads, no engine gets more requests than its
// capacity and no client gets a wrong or truncated response that looks complete. Afterwards all
// slots, buffers and connections are released. See docs/testing.md for the faults and the checks.
//
//	BERTH_CHAOS=1h go test ./e2e -run Chaos -timeout 90m -v
//
// BERTH_CHAOS_SEED repeats the random choices of an earlier run, but not the scheduling of
// processes.
func TestChaosLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	duration := 15 * time.Second
	if text := os.Getenv("BERTH_CHAOS"); text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil {
			t.Fatalf("BERTH_CHAOS: %v", err)
		}
	}
	seed := cmp.Or(uint64(envInt(t, "BERTH_CHAOS_SEED", 0)), rand.Uint64N(1<<32)+1)
	t.Logf("BERTH_CHAOS=%v BERTH_CHAOS_SEED=%d", duration, seed)

	c := newChaos(t, seed)
	t.Cleanup(func() { c.findings.report(t) })
	clients := newChaosClients(t, c, 48)
	ctx, stop := context.WithTimeout(t.Context(), duration)
	defer stop()
	var running sync.WaitGroup
	random := func(k uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, k)) }
	running.Go(func() { c.injectFaults(ctx, random(1), c.withAgents()...) })
	running.Go(func() { c.injectFaults(ctx, random(2), singly(c.engines[len(c.agents):])...) })
	running.Go(func() { c.injectFaults(ctx, random(3), singly([]*unit{c.gateways[0].unit, c.gateways[1].unit})...) })
	for i, g := range c.gateways {
		running.Go(func() { g.reloads(ctx, random(uint64(4+i))) })
	}
	running.Go(func() { clients.quiescePeriodically(ctx) })
	running.Wait()
	clients.stop(t)
	c.checkReleased(t)
	c.checkServing(t, clients)
	c.checkResourceUsage(t)
	c.stopFleet(t)
	c.summarize(t)
}

// newChaos starts the fleet and waits until all processes serve.
func newChaos(t *testing.T, seed uint64) *chaos {
	c := &chaos{seed: seed, logs: t.ArtifactDir()}
	c.pages = http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	t.Cleanup(c.killAll)
	binary, err := buildBerth()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	var agents, plain []string
	var limits []*concurrencyLimit
	for i := range 6 {
		limit := &concurrencyLimit{file: filepath.Join(c.logs, fmt.Sprintf("capacity-%d", i+1))}
		limit.set(maxCapacity)
		engine := freeAddress(t, rng)
		c.engines = append(c.engines, &unit{chaos: c, name: fmt.Sprintf("engine-%d", i+1), ready: "http://" + engine + "/health",
			command: func() *exec.Cmd { return engineCommand(engine, limit.file) }})
		if i >= 3 {
			plain, limits = append(plain, "http://"+engine), append(limits, limit)
			continue
		}
		address, name := freeAddress(t, rng), fmt.Sprintf("agent-%d", i+1)
		agents = append(agents, "http://"+address)
		c.agents = append(c.agents, &unit{chaos: c, name: name, ready: "http://" + address + "/livez", limit: limit, command: func() *exec.Cmd {
			return exec.Command(binary, "llmserver", "--id", name, "--engine", "http://"+engine, "--address", address,
				"--max-ongoing-requests", fmt.Sprint(limit.value.Load()), "--drain-timeout", drainTimeout.String())
		}})
	}
	for i := range 2 {
		g := c.newGateway(fmt.Sprintf("ingress-%d", i+1), "http://"+freeAddress(t, rng), "http://"+freeAddress(t, rng))
		g.agents, g.models = agents, []string{sharedModel, sharedModel, guestModel}
		if i == 0 {
			g.engines, g.limits = plain, limits
			g.models = []string{sharedModel, guestModel, plainModel, plainModel, plainModel, plainModel, spareModel, spareModel}
		}
		g.command = func() *exec.Cmd { return exec.Command(binary, "serve", "--config", g.file) }
		g.reload(g.baselineSettings().text)
		c.gateways = append(c.gateways, g)
	}
	for _, u := range c.units() {
		if err := u.start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range c.gateways {
		eventually(t, g.name+" is ready", func() bool { status, _ := c.page(g.url + "/readyz"); return status == http.StatusOK })
	}
	for _, u := range c.units() {
		u.baseline = c.usage(u)
	}
	return c
}

// units returns all units in the order of their start.
func (c *chaos) units() []*unit {
	all := slices.Concat(c.engines, c.agents)
	for _, g := range c.gateways {
		all = append(all, g.unit)
	}
	return all
}

// withAgents returns each agent with its engine.
func (c *chaos) withAgents() (pairs [][]*unit) {
	for i, a := range c.agents {
		pairs = append(pairs, []*unit{a, c.engines[i]})
	}
	return pairs
}

// singly returns a group whose members are single units.
func singly(units []*unit) (members [][]*unit) {
	for _, u := range units {
		members = append(members, []*unit{u})
	}
	return members
}

// killAll kills all processes.
func (c *chaos) killAll() {
	for _, u := range c.units() {
		if p := u.current.Load(); p != nil {
			p.Process.Kill()
			<-p.done
		}
	}
}

// page sends a GET request. The status is 0 if there is no response.
func (c *chaos) page(url string) (status int, body string) {
	resp, err := c.pages.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}
