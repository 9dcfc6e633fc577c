package ingress

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"berth/config"
	"berth/ingress/telemetry"
	"berth/llmserver"
	"berth/llmserver/agent"
	"berth/routers"
)

// A registry builds routers from configurations and finds the router of a model.
//
// Requests load the immutable table, so they never wait for a reload, and each request resolves
// model and limits in one configuration. table is written under applyMu, which is held for a whole
// reload: reloads must not interleave. Handlers of pool events never take applyMu on the reporting
// goroutine, which may belong to a request; and sources, which publish sets of replicas, never take
// it either, see sources.
type registry struct {
	pool      llmserver.Pool
	simulated simulatedEngines // under applyMu
	sources   sources
	telemetry *telemetry.Telemetry
	log       *slog.Logger

	// onNewSet is called after replicas from a source have changed, without a lock.
	onNewSet func()

	table    atomic.Pointer[table]
	applyMu  sync.Mutex
	closed   bool          // under applyMu
	applying bool          // applySets runs; under applyMu
	closing  chan struct{} // closed by close
	restarts restartBackoff
	drains   drains         // by operators
	reloads  sync.WaitGroup // of onRestart and applySets
}

// A table is the effect of one configuration, immutable.
type table struct {
	config  *config.Config
	models  []*model          // in the order of the configuration
	sources []*source         // of all models
	names   map[string]*model // by ID and by alias
	keys    apiKeys           // nil: no key is required

	blockBytes int // block size of the first model with a policy that uses prompt blocks; 0: none
}

// A model serves one configured model. Only the router and the metrics change. A reload keeps the
// *model if its configuration is unchanged, and the router, queue included, if the model's ID
// remains.
type model struct {
	config    config.Model
	created   int64 // Unix time, for clients that list models
	router    *routers.Router
	metrics   *telemetry.ModelMetrics
	retries   *retryBudget
	replicas  []*llmserver.Replica
	endpoints []llmserver.Endpoint // of replicas, as applied
	warnText  *sync.Once           // guards the warning of a request without routing text
}

// newRegistry returns a registry without models. close must be called in the end.
func newRegistry(t *telemetry.Telemetry, log *slog.Logger) *registry {
	r := &registry{telemetry: t, log: log, closing: make(chan struct{}), onNewSet: func() {}}
	r.sources.log, r.sources.create, r.sources.changed = log, newSource, make(chan struct{}, 1)
	r.pool.Dial = dialBackend
	r.pool.Events = llmserver.Events{
		CancelFailed: func(replica string, err error) {
			log.Warn("cancelling a reservation failed; it will expire with its lease", "replica", replica, "error", err)
		},
		CapacityDiffers: func(replica string, configured, reported int) {
			if configured == config.DefaultMaxOngoing {
				return // the default, most likely not chosen by the operator
			}
			log.Warn("using the capacity reported by the agent, not the configured one", "replica", replica, "configured", configured, "reported", reported)
		},
		ModelUnlisted: r.warnUnlisted,
		Restarted:     r.onRestart,
	}
	r.table.Store(&table{config: &config.Config{}})
	return r
}

// dialBackend returns the backend of a replica: through its agent if the agent counts the slots.
func dialBackend(e llmserver.Endpoint) (llmserver.Backend, error) {
	if e.CountsSlots {
		return agent.Dial(e)
	}
	return llmserver.DialHTTP(e)
}

// findModel returns the model with this ID or alias, or nil. See resolveAdapter for adapters.
func (t *table) findModel(name string) *model { return t.names[name] }

// policyClass returns the policy class of a model; "" if the model was removed meanwhile.
func (t *table) policyClass(model string) string {
	if m := t.names[model]; m != nil {
		return m.config.Router.Class
	}
	return ""
}

// resolveAdapter splits a name "base:adapter" other than a model's own. Both parts may contain
// colons, so the longest known name before a colon is the base. base is nil without a known name.
func (t *table) resolveAdapter(name string) (base *model, adapter string) {
	longest := 0
	for known, m := range t.names {
		n := len(known)
		if n > longest && n < len(name)-1 && name[n] == ':' && name[:n] == known {
			longest, base, adapter = n, m, name[n+1:]
		}
	}
	return base, adapter
}

// filterAllowed returns the models allowed for a key.
func filterAllowed(models []*model, key *apiKey) []*model {
	if key == nil || key.models == nil {
		return models
	}
	return slices.DeleteFunc(slices.Clone(models), func(m *model) bool { return !key.allows(m.config.ID) })
}

// allReplicas returns every replica that may have requests, each once, leaving replicas included.
// Any goroutine may call it. During a reload the result may lack a replica that is being retired or
// taken back.
func (r *registry) allReplicas() []*llmserver.Replica {
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

// unready returns the reason why the server is not ready, or "" if it is: every source has
// published a set once, and some replica of some model can serve. Full replicas can: if load made
// the server unready, all load would move to the other ingresses at once.
func (r *registry) unready() string {
	if !r.sources.synced.Load() {
		return "a source of replicas has not published a set yet"
	}
	for _, m := range r.table.Load().models {
		if slices.ContainsFunc(m.replicas, (*llmserver.Replica).Available) {
			return ""
		}
	}
	return "no replica of any model is available"
}

// close closes all routers and replicas and blocks until sources and pending reloads have ended. No
// request may be in progress. A second call is harmless.
func (r *registry) close() {
	r.applyMu.Lock()
	if !r.closed {
		close(r.closing)
	}
	r.closed = true
	r.sources.stop()
	r.applyMu.Unlock()
	for _, m := range r.table.Load().models {
		m.router.Close()
	}
	r.pool.Close() // before Wait: probes, which end here, may still call onRestart
	r.reloads.Wait()
	r.sources.wait()
	r.simulated.close()
}
