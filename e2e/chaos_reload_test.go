package e2e

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// maxCapacity is the maximum number of slots of a replica.
const maxCapacity = 4

// policies are the values of request_router_config that reloads choose from.
var policies = []string{
	"{request_router_class: RoundRobinRouter}",
	"{request_router_class: PowerOfTwoChoicesRouter}",
	"{request_router_class: ConsistentHashRouter}",
	"{request_router_class: ConsistentHashRouter, request_router_kwargs: {num_fallback_replicas: 1, max_load_factor: 1.25}}",
	"{request_router_class: PrefixCacheAffinityRouter}",
}

// Models of the fleet. The first of each pair is always served and has at least two replicas. The
// second is added and removed, with a replica moved from the first.
const (
	sharedModel = "shared" // agents, at both ingresses
	guestModel  = "guest"
	plainModel  = "plain" // engines without agents, only at the first ingress, which counts their slots
	spareModel  = "spare"
)

// concurrencyLimit is the allowed number of concurrent requests of an engine. The engine reads the
// limit from a file at each request, so a stopped engine also gets a new limit in time.
type concurrencyLimit struct {
	file  string
	value atomic.Int64
}

// set changes the limit and atomically replaces the file.
func (l *concurrencyLimit) set(n int) {
	l.value.Store(int64(n))
	next := l.file + ".next"
	if err := os.WriteFile(next, []byte(strconv.Itoa(n)), 0o600); err != nil {
		panic(err)
	}
	if err := os.Rename(next, l.file); err != nil {
		panic(err)
	}
}

// gateway is an ingress and its configuration.
type gateway struct {
	*unit
	url, admin string
	file       string
	agents     []string // URLs of the agents
	engines    []string // URLs of the engines whose slots the ingress counts
	limits     []*concurrencyLimit
	models     []string // models of client requests, weighted by repetition
	generation int
}

// settings is one configuration of a gateway.
type settings struct {
	text     string
	marker   string         // a model alias that shows whether the configuration is in effect
	capacity map[int]int    // of the engines in use, by index
	ids      map[int]string // replica IDs of the engines, by index
}

// reloads applies random configurations until ctx is done.
func (g *gateway) reloads(ctx context.Context, rng *rand.Rand) {
	valid := g.settings(rng)
	for pause(ctx, time.Duration(100+rng.IntN(900))*time.Millisecond) {
		g.chaos.gate.RLock()
		if rng.IntN(15) == 0 {
			g.chaos.counts.add("reloads with an invalid configuration")
			g.reload("llm_configs: [{no_such_key: 1}]\n")
			pause(ctx, time.Duration(rng.IntN(300))*time.Millisecond)
			g.reload(valid.text)
		} else {
			g.chaos.counts.add("reloads")
			valid = g.settings(rng)
			g.apply(ctx, valid)
		}
		g.chaos.gate.RUnlock()
	}
}

// apply reloads with a configuration. Limits of engines whose capacity increases are raised before
// the reload. A lower limit is set once the configuration is in effect and the engine has no more
// requests than the new capacity, which must hold from then on.
func (g *gateway) apply(ctx context.Context, s settings) {
	for i, n := range s.capacity {
		if int64(n) > g.limits[i].value.Load() {
			g.limits[i].set(n)
		}
	}
	g.reload(s.text)
	if len(s.capacity) == 0 {
		return
	}
	for range 20 {
		if status, _ := g.chaos.page(g.url + "/v1/models/" + s.marker); status == http.StatusOK {
			break
		}
		if !pause(ctx, 50*time.Millisecond) {
			return
		}
	}
	status, _ := g.chaos.page(g.url + "/v1/models/" + s.marker)
	ok, metrics := g.chaos.page(g.admin + "/metrics")
	if status != http.StatusOK || ok != http.StatusOK {
		g.chaos.counts.add("reloads not in effect in time")
		return
	}
	for i, n := range s.capacity {
		if sample(metrics, "berth_slots", `replica="`+s.ids[i]+`"`) <= float64(n) {
			g.limits[i].set(n)
		}
	}
}

// reload writes the file and signals the process, if there is one; otherwise the next process reads
// the file at its start.
func (g *gateway) reload(text string) {
	next := g.file + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		panic(err)
	}
	if err := os.Rename(next, g.file); err != nil {
		panic(err)
	}
	if p := g.current.Load(); p != nil {
		p.Process.Signal(syscall.SIGHUP)
	}
}

// settings returns a random configuration.
func (g *gateway) settings(rng *rand.Rand) settings {
	b := g.newSettings()
	ids := rng.Perm(len(g.agents) + len(g.engines))
	id := func(i int) string { return string(rune('a' + ids[i])) }
	b.models(rng, draw{sharedModel, guestModel, len(g.agents), func(i int, capacity int) string {
		return fmt.Sprintf("{id: %s, url: %q}", id(i), g.agents[i]) // the agent's own capacity applies
	}, []string{"replica", "ingress"}})
	if len(g.engines) > 0 {
		b.models(rng, draw{plainModel, spareModel, len(g.engines), func(i int, capacity int) string {
			b.capacity[i], b.ids[i] = capacity, id(len(g.agents)+i)
			return fmt.Sprintf("{id: %s, url: %q, max_ongoing_requests: %d}", b.ids[i], g.engines[i], capacity)
		}, []string{"ingress", "ingress"}})
	}
	return b.build()
}

// baselineSettings returns the configuration before and after the faults: all models and replicas,
// with the maximum capacity.
func (g *gateway) baselineSettings() settings {
	b := g.newSettings()
	deployment := "max_queued_requests: 64, queue_timeout_s: 5, request_router_config: " + policies[1]
	var agents, engines []string
	for _, url := range g.agents {
		agents = append(agents, fmt.Sprintf("{url: %q}", url))
	}
	for i, url := range g.engines {
		b.capacity[i], b.ids[i] = maxCapacity, strings.TrimPrefix(url, "http://")
		engines = append(engines, fmt.Sprintf("{url: %q, max_ongoing_requests: %d}", url, maxCapacity))
	}
	last := len(agents) - 1
	b.model(sharedModel, "replica", deployment, agents[:last])
	b.model(guestModel, "replica", deployment, agents[last:])
	if len(engines) > 0 {
		b.model(plainModel, "ingress", deployment, engines[:last])
		b.model(spareModel, "ingress", deployment, engines[last:])
	}
	return b.build()
}

type settingsBuilder struct {
	settings
	yaml strings.Builder
}

func (g *gateway) newSettings() *settingsBuilder {
	g.generation++
	b := &settingsBuilder{settings: settings{marker: "generation-" + strconv.Itoa(g.generation), capacity: map[int]int{}, ids: map[int]string{}}}
	fmt.Fprintf(&b.yaml, "http: {address: %q, drain_timeout_s: %v}\nadmin: {address: %q}\nllm_configs:\n",
		strings.TrimPrefix(g.url, "http://"), drainTimeout.Seconds(), strings.TrimPrefix(g.admin, "http://"))
	return b
}

func (b *settingsBuilder) build() settings {
	b.text = b.yaml.String()
	return b.settings
}

// draw describes a pair of models: the replicas, and the possible slot authorities.
type draw struct {
	base, guest string
	replicas    int
	replica     func(i, capacity int) string
	authorities []string
}

// models adds a random pair of models. At most one replica is left out or moved to the guest.
func (b *settingsBuilder) models(rng *rand.Rand, d draw) {
	order, absent := rng.Perm(d.replicas), rng.IntN(4)
	var base, guest []string
	for k, i := range order {
		capacity := 1 + rng.IntN(maxCapacity)
		switch {
		case k > 0 || absent == 0:
			base = append(base, d.replica(i, capacity))
		case absent == 1: // left out
		default:
			guest = append(guest, d.replica(i, capacity))
		}
	}
	b.model(d.base, d.authorities[0], deployment(rng), base)
	if len(guest) > 0 {
		b.model(d.guest, d.authorities[rng.IntN(2)], deployment(rng), guest)
	}
}

// deployment returns random deployment settings.
func deployment(rng *rand.Rand) string {
	queued, wait := []int{0, 4, 16, 64, 64, -1}[rng.IntN(6)], []int{1, 4, 30, 30}[rng.IntN(4)]
	return fmt.Sprintf("max_queued_requests: %d, queue_timeout_s: %d, request_router_config: %s", queued, wait, policies[rng.IntN(len(policies))])
}

func (b *settingsBuilder) model(name, authority, deployment string, replicas []string) {
	aliases := ""
	if name == sharedModel {
		aliases = "\n  aliases: [" + b.marker + "]"
	}
	fmt.Fprintf(&b.yaml, "- model_loading_config: {model_id: %s}%s\n  served_model_name: demo\n  slot_authority: %s\n"+
		"  deployment_config: {%s, health_check_period_s: 1, health_check_timeout_s: 2}\n  replicas: [%s]\n",
		name, aliases, authority, deployment, strings.Join(replicas, ", "))
}

// sample returns the sum of a metric's samples with the given label, or of all samples if label is
// "".
func sample(metrics, name, label string) (sum float64) {
	for lines := bufio.NewScanner(strings.NewReader(metrics)); lines.Scan(); {
		series, value, _ := strings.Cut(lines.Text(), " ")
		metric, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		if metric != name || label != "" && !hasLabels(labels, []string{label}) {
			continue
		}
		v, _ := strconv.ParseFloat(value, 64)
		sum += v
	}
	return sum
}

// newGateway returns an ingress that is not started yet.
func (c *chaos) newGateway(name, url, admin string) *gateway {
	g := &gateway{url: url, admin: admin, file: filepath.Join(c.logs, name+".yaml")}
	g.unit = &unit{chaos: c, name: name, ready: url + "/livez"}
	return g
}
