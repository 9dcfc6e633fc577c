package ingress

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"berth/config"
	"berth/internal/http1"
	"berth/llmserver"
	"berth/llmserver/agent"
	"berth/routers"
)

// registry turns configuration into routers, and finds the router of a model.
// A request reads one pointer; only apply writes it.
type registry struct {
	pool    llmserver.Pool
	fleet   fleet
	metrics *metrics
	log     *slog.Logger

	decisions *decisions // nil: nobody can ask for them

	table    atomic.Pointer[table]
	applying sync.Mutex
	closed   bool          // under applying
	closing  chan struct{} // closed by close
	renewals renewals
}

// table is everything that one configuration says; it is immutable.
type table struct {
	config *config.Config
	models []*model          // in the order of the configuration
	names  map[string]*model // by id and by alias
	auth   auth

	blockBytes int // in a block of the first model whose policy goes by blocks of the prompt; 0 if none does
}

// model is what serves one configured model. One that a new configuration
// leaves as it was stays the same.
type model struct {
	config   config.Model
	created  int64 // Unix time, for clients that list models
	router   *routers.Router
	metrics  *modelMetrics
	replicas []*llmserver.Replica
	warnText sync.Once // a request came without routing text
}

func newRegistry(m *metrics, log *slog.Logger) *registry {
	r := &registry{metrics: m, log: log, closing: make(chan struct{})}
	r.pool.Dial = dial
	r.pool.Events = llmserver.Events{
		CancelFailed: func(replica string, err error) {
			log.Warn("a reserved slot could not be given back; its lease will end it", "replica", replica, "error", err)
		},
		CapacityDiffers: func(replica string, configured, reported int) {
			if configured == config.DefaultMaxOngoing {
				return // nobody asked for it
			}
			log.Warn("the replica's own capacity holds, not the configured one", "replica", replica, "configured", configured, "reported", reported)
		},
		Restarted: r.restarted,
	}
	r.table.Store(&table{config: &config.Config{}})
	return r
}

// dial makes the backend of a replica: over its agent if that counts its slots.
func dial(e llmserver.Endpoint) (llmserver.Backend, error) {
	if e.CountsSlots {
		return agent.Dial(e)
	}
	return http1.Dial(e)
}

// find is the model that clients call by name; nil if there is none.
func (t *table) find(name string) *model { return t.names[name] }

// policy is the class of a model's policy.
func (t *table) policy(model string) string {
	if m := t.names[model]; m != nil {
		return m.config.Router.Class
	}
	return "" // removed by now
}

// adapted is the model that a name is for which is nobody's, and the adapter of it that the name asks for:
// "base:adapter". As both parts may have colons, the longest known name in front of one is the base.
func (t *table) adapted(name string) (base *model, adapter string) {
	longest := 0
	for known, m := range t.names {
		n := len(known)
		if n > longest && n < len(name)-1 && name[n] == ':' && name[:n] == known {
			longest, base, adapter = n, m, name[n+1:]
		}
	}
	return base, adapter
}

// apply takes over a configuration. Whatever can fail comes first; on an error
// nothing has changed.
func (r *registry) apply(c *config.Config) error {
	r.applying.Lock()
	defer r.applying.Unlock()
	return r.take(c)
}

// take is apply for one who holds applying.
func (r *registry) take(c *config.Config) error {
	if r.closed {
		return nil
	}
	old, next := r.table.Load(), &table{config: c, names: make(map[string]*model)}
	var err error
	if next.auth, err = newAuth(c, old.auth); err != nil {
		return err
	}
	plans, err := r.plan(c)
	if err != nil {
		return err
	}
	var endpoints []llmserver.Endpoint
	for _, p := range plans {
		endpoints = append(endpoints, p.endpoints...)
	}
	replicas, retire, err := r.pool.Set(endpoints)
	if err != nil {
		r.fleet.abandon()
		return err
	}
	for _, p := range plans {
		m := r.enact(old, p, replicas[:len(p.endpoints)])
		replicas = replicas[len(p.endpoints):]
		next.models = append(next.models, m)
		if prefixed, ok := m.router.Policy().(routers.BlockSizer); ok {
			next.blockBytes = cmp.Or(next.blockBytes, prefixed.BlockSize())
		}
		for _, name := range append(slices.Clone(p.config.Aliases), p.config.ID) {
			next.names[name] = m
		}
	}
	r.table.Store(next)
	for _, m := range old.models {
		if now := next.find(m.config.ID); now == nil || now.router != m.router {
			m.router.Close()
		}
	}
	retire()
	r.fleet.commit()
	return nil
}

// plan is what a model needs, made ready as far as that can fail.
type plan struct {
	config    config.Model
	build     routers.Builder
	endpoints []llmserver.Endpoint
}

// plan prepares every model.
func (r *registry) plan(c *config.Config) ([]plan, error) {
	var plans []plan
	for _, m := range c.Models {
		p := plan{config: m}
		var err error
		if p.build, err = routers.Lookup(m.Router.Class, m.Router.Kwargs); err == nil {
			p.endpoints, err = r.endpoints(m)
		}
		if err != nil {
			r.fleet.abandon()
			return nil, fmt.Errorf("model %s: %w", m.ID, err)
		}
		plans = append(plans, p)
	}
	return plans, nil
}

// endpoints lists a model's replicas, and starts those that are simulated.
func (r *registry) endpoints(m config.Model) ([]llmserver.Endpoint, error) {
	replicas := m.Replicas
	if m.Simulated != nil {
		var err error
		if replicas, err = r.fleet.prepare(m); err != nil {
			return nil, err
		}
	}
	secret := os.Getenv(m.SlotSecretEnv)
	if m.SlotSecretEnv != "" && secret == "" {
		return nil, fmt.Errorf("the environment variable %s, which should hold the secret of its agents, is not set", m.SlotSecretEnv)
	}
	endpoints := make([]llmserver.Endpoint, len(replicas))
	for i, replica := range replicas {
		endpoints[i] = llmserver.Endpoint{
			Model:          m.ID,
			ID:             replica.ID,
			Label:          label(i, replica),
			URL:            replica.URL,
			Limit:          replica.MaxOngoingRequests,
			ConnectTimeout: m.ConnectTimeout,
			SendTimeout:    m.SendTimeout,
			ProbeEvery:     m.HealthCheckPeriod,
			ProbeTimeout:   m.HealthCheckTimeout,
			CountsSlots:    m.SlotAuthority == config.ReplicaCounts,
			SlotSecret:     secret,
		}
		if replica.APIKeyEnv != "" {
			if endpoints[i].APIKey = os.Getenv(replica.APIKeyEnv); endpoints[i].APIKey == "" {
				return nil, fmt.Errorf("replica %s: the environment variable %s, which should hold its key, is not set", replica.ID, replica.APIKeyEnv)
			}
		}
	}
	return endpoints, nil
}

// label is what clients read where a replica's ID, as it was given none, is its address; empty else.
func label(i int, r config.Replica) string {
	u, err := url.Parse(r.URL)
	if host, _, bad := net.SplitHostPort(r.ID); err != nil || bad != nil || host != u.Hostname() {
		return ""
	}
	return strconv.Itoa(i + 1)
}

// enact makes the model of a plan, or keeps the one there is if nothing changed. It cannot fail.
func (r *registry) enact(old *table, p plan, replicas []*llmserver.Replica) *model {
	limits := routers.Limits{MaxQueued: p.config.MaxQueuedRequests, QueueTimeout: p.config.QueueTimeout}
	before := old.find(p.config.ID)
	if before != nil && before.config.ID != p.config.ID {
		before = nil // it was an alias
	}
	m := &model{config: p.config, replicas: slices.Clone(replicas)}
	switch {
	case before == nil:
		m.created = time.Now().Unix()
		m.metrics = newModelMetrics(p.config.ID)
		m.router = routers.New(m.replicas, p.build, limits, r.hooks(p.config.ID, m.metrics))
	case reflect.DeepEqual(before.config, p.config) && slices.Equal(before.replicas, replicas):
		return before
	default:
		m.created, m.router, m.metrics = before.created, before.router, before.metrics
		m.observe() // before requests can wait for these replicas
		m.router.Update(m.replicas, p.build, limits)
		return m
	}
	m.observe()
	m.router.Refresh() // what changed before that was told to nobody
	return m
}

// observe has the router hear when its replicas change.
func (m *model) observe() {
	for _, replica := range m.replicas {
		replica.OnChange(m.router.Refresh)
	}
}

// replicas are all that have or may have requests on them, also those that
// are leaving; each once, also while a configuration is being taken over.
func (r *registry) replicas() []*llmserver.Replica {
	all := r.pool.Leaving()
	seen := make(map[*llmserver.Replica]bool, len(all))
	for _, replica := range all {
		seen[replica] = true
	}
	for _, m := range r.table.Load().models {
		for _, replica := range m.replicas {
			if !seen[replica] {
				seen[replica] = true
				all = append(all, replica)
			}
		}
	}
	return all
}

// ready tells whether some replica of some model can serve.
func (r *registry) ready() bool {
	for _, m := range r.table.Load().models {
		if slices.ContainsFunc(m.replicas, (*llmserver.Replica).Available) {
			return true
		}
	}
	return false
}

// close lets go of everything. No request may be under way any more.
func (r *registry) close() {
	r.applying.Lock()
	if !r.closed {
		close(r.closing)
	}
	r.closed = true
	r.applying.Unlock()
	for _, m := range r.table.Load().models {
		m.router.Close()
	}
	r.pool.Close()
	r.renewals.Wait()
	r.fleet.close()
}
