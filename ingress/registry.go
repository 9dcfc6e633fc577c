package ingress

import (
	"cmp"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
// reload: reloads are rare and must not interleave. Handlers of pool events never take applyMu on
// the reporting goroutine, which may belong to a request.
type registry struct {
	pool      llmserver.Pool
	simulated simulatedEngines // under applyMu
	telemetry *telemetry.Telemetry
	log       *slog.Logger

	table    atomic.Pointer[table]
	applyMu  sync.Mutex
	closed   bool          // under applyMu
	closing  chan struct{} // closed by close
	restarts restartBackoff
	drains   drains         // by operators
	reloads  sync.WaitGroup // of onRestart
}

// A table is the effect of one configuration, immutable.
type table struct {
	config *config.Config
	models []*model          // in the order of the configuration
	names  map[string]*model // by ID and by alias
	keys   apiKeys           // nil: no key is required

	blockBytes int // block size of the first model with a policy that uses prompt blocks; 0: none
}

// A model serves one configured model. Only the router and the metrics change. A reload keeps the
// *model if its configuration is unchanged, and the router, queue included, if the model's ID
// remains.
type model struct {
	config   config.Model
	created  int64 // Unix time, for clients that list models
	router   *routers.Router
	metrics  *telemetry.ModelMetrics
	retries  *retryBudget
	replicas []*llmserver.Replica
	warnText sync.Once // guards the warning of a request without routing text
}

// newRegistry returns a registry without models. close must be called in the end.
func newRegistry(t *telemetry.Telemetry, log *slog.Logger) *registry {
	r := &registry{telemetry: t, log: log, closing: make(chan struct{})}
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

// apply replaces the configuration. It blocks during another apply or a reload after a restart.
// After an error nothing has changed. After close it does nothing.
func (r *registry) apply(c *config.Config) error {
	r.applyMu.Lock()
	defer r.applyMu.Unlock()
	return r.applyLocked(c)
}

// applyLocked is apply for callers that hold applyMu.
//
// Everything fallible comes first. Once pool.Set has succeeded, nothing can fail any more, and the
// order matters: replicas exist before routers use them, the new table is in use before removed
// models are closed, and replicas retire only when no table names them.
func (r *registry) applyLocked(c *config.Config) error {
	if r.closed {
		return nil
	}
	// Prepare: simulated engines may start, but request serving is unchanged.
	old, next := r.table.Load(), &table{config: c, names: make(map[string]*model)}
	var err error
	if next.keys, err = newAPIKeys(c, old.keys); err != nil {
		return err
	}
	plans, err := planModels(c, &r.simulated)
	if err != nil {
		return err
	}
	endpoints := r.drains.endpoints(plans)
	// Set either fails as a whole, or returns the replicas in the order of the endpoints. Dropped
	// replicas keep serving until retire is called.
	replicas, retire, err := r.pool.Set(endpoints)
	if err != nil {
		r.simulated.rollback()
		return err
	}
	// Commit: routers of known models change here, while requests are using them.
	for _, p := range plans {
		m := r.buildModel(old, p, replicas[:len(p.endpoints)])
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
	// A request with the old table may still find a removed model. The router is closed, not just
	// dropped, so such a request and the queued ones get ErrClosed at once.
	for _, m := range old.models {
		if now := next.findModel(m.config.ID); now == nil || now.router != m.router {
			m.router.Close()
		}
	}
	retire()
	r.simulated.commit()
	return nil
}

// buildModel returns the model of a plan: the old *model if nothing changed, else a new one, with
// the old router if the model's ID existed: the queue and the learned state of the policy survive
// the reload. buildModel cannot fail. The caller holds applyMu, which also serializes
// Router.Update.
func (r *registry) buildModel(old *table, p modelPlan, replicas []*llmserver.Replica) *model {
	limits := routers.Limits{MaxQueued: p.config.MaxQueuedRequests, QueueTimeout: p.config.QueueTimeout}
	before := old.findModel(p.config.ID)
	if before != nil && before.config.ID != p.config.ID {
		before = nil // the name was an alias of another model
	}
	m := &model{config: p.config, replicas: slices.Clone(replicas)}
	switch {
	case before == nil:
		m.created = time.Now().Unix()
		m.metrics, m.retries = telemetry.NewModelMetrics(p.config.ID), newRetryBudget()
		id := p.config.ID // the only part of the plan kept by the hooks
		hooks := r.telemetry.RouterHooks(m.metrics, func() string { return r.table.Load().policyClass(id) })
		hooks.Overload = func(overloaded bool) { r.logOverload(id, overloaded) }
		m.router = routers.New(m.replicas, p.build, limits, hooks)
	case reflect.DeepEqual(before.config, p.config) && slices.Equal(before.replicas, replicas):
		return before
	default:
		m.created, m.router, m.metrics, m.retries = before.created, before.router, before.metrics, before.retries
		m.observeReplicas() // before requests can wait for these replicas
		m.router.Update(m.replicas, p.build, limits)
		return m
	}
	m.observeReplicas()
	m.router.Refresh() // for changes between routers.New and observeReplicas
	return m
}

// logOverload logs the beginning or the end of a model's overload.
func (r *registry) logOverload(model string, overloaded bool) {
	if overloaded {
		r.log.Warn("overload: clients leave before they are served, so requests that would wait for long are refused; add replicas", "model", model)
	} else {
		r.log.Info("the overload is over", "model", model)
	}
}

// observeReplicas gives the replicas of the model their metrics, and refreshes the router whenever
// one of them changes. A replica has one observer: a model with a replica taken over from another
// model replaces the other's observer.
func (m *model) observeReplicas() {
	m.metrics.SetReplicas(m.replicas)
	for _, replica := range m.replicas {
		replica.OnChange(m.router.Refresh)
	}
}

// onRestart replaces a replica after a restart of the process: the slots of the old process do not
// exist in the new one. It is called once per *Replica, on the goroutine of the request or probe
// that detected the restart. As that goroutine must not block, the reload runs on another one.
func (r *registry) onRestart(e llmserver.Endpoint) {
	delay := r.restarts.nextDelay(e.URL)
	if delay == 0 {
		r.log.Info("the replica has restarted", "replica", e.ID)
	} else {
		r.log.Warn("another process answers for the replica again; if it did not restart, two processes share its address, and its slots cannot be counted",
			"replica", e.ID, "taken_over_in", delay)
	}
	r.reloads.Go(func() { r.reloadAfter(delay) })
}

// reloadAfter applies the current configuration again after delay, so the pool dials the new
// processes. It returns early if the registry closes.
func (r *registry) reloadAfter(delay time.Duration) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.closing:
		return
	}
	r.applyMu.Lock() // before the table is read: the configuration must not be an older one
	defer r.applyMu.Unlock()
	if err := r.applyLocked(r.table.Load().config); err != nil {
		r.log.Error("reload after the restart of a replica failed", "error", err)
	}
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

// ready reports whether some replica of some model can serve. Full replicas can: if load made the
// server unready, all load would move to the other ingresses at once.
func (r *registry) ready() bool {
	for _, m := range r.table.Load().models {
		if slices.ContainsFunc(m.replicas, (*llmserver.Replica).Available) {
			return true
		}
	}
	return false
}

// close closes all routers and replicas and blocks until pending reloads have ended. No request may
// be in progress. A second call is harmless.
func (r *registry) close() {
	r.applyMu.Lock()
	if !r.closed {
		close(r.closing)
	}
	r.closed = true
	r.applyMu.Unlock()
	for _, m := range r.table.Load().models {
		m.router.Close()
	}
	r.pool.Close() // before Wait: probes, which end here, may still call onRestart
	r.reloads.Wait()
	r.simulated.close()
}
