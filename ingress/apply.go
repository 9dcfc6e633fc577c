package ingress

import (
	"cmp"
	"reflect"
	"slices"
	"sync"
	"time"

	"berth/config"
	"berth/ingress/telemetry"
	"berth/llmserver"
	"berth/routers"
)

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
	// Prepare: simulated engines may start, but request serving is unchanged. A set published from
	// here on may be missing in this pass, but not in the next one, which its signal causes.
	old, next := r.table.Load(), &table{config: c, names: make(map[string]*model)}
	var err error
	if next.keys, err = newAPIKeys(c, old.keys); err != nil {
		return err
	}
	plans, err := planModels(c, &r.simulated, &r.sources)
	if err != nil {
		return err
	}
	next.sources = slices.Clone(r.sources.prepared)
	synced := r.sources.allPublished()
	endpoints := r.drains.endpoints(plans)
	// Set either fails as a whole, or returns the replicas in the order of the endpoints. Dropped
	// replicas keep serving until retire is called.
	replicas, retire, err := r.pool.Set(endpoints)
	if err != nil {
		r.simulated.rollback()
		r.sources.rollback()
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
	if r.sources.commit() && !r.applying {
		r.applying = true
		r.reloads.Go(r.applySets)
	}
	if synced {
		r.sources.synced.Store(true)
	}
	return nil
}

// buildModel returns the model of a plan: the old *model if nothing changed, else a new one, with
// the old router if the model's ID existed: the queue and the learned state of the policy survive
// the reload. buildModel cannot fail. The caller holds applyMu, which also serializes
// Router.Update.
func (r *registry) buildModel(old *table, p modelPlan, replicas []*llmserver.Replica) *model {
	limits := routers.Limits{MaxQueued: p.config.MaxQueuedRequests, QueueTimeout: p.config.QueueTimeout, AwaitMembers: p.config.HasSource()}
	before := old.findModel(p.config.ID)
	if before != nil && before.config.ID != p.config.ID {
		before = nil // the name was an alias of another model
	}
	m := &model{config: p.config, replicas: slices.Clone(replicas), endpoints: p.endpoints, warnText: new(sync.Once)}
	switch {
	case before == nil:
		m.created = time.Now().Unix()
		m.metrics, m.retries = telemetry.NewModelMetrics(p.config.ID), newRetryBudget()
		id := p.config.ID // the only part of the plan kept by the hooks
		hooks := r.telemetry.RouterHooks(m.metrics, func() string { return r.table.Load().policyClass(id) })
		hooks.Overload = func(overloaded bool) { r.logOverload(id, overloaded) }
		m.router = routers.New(m.replicas, p.build, limits, hooks)
	case reflect.DeepEqual(before.config, p.config):
		if slices.Equal(before.replicas, replicas) && slices.Equal(before.endpoints, p.endpoints) {
			return before
		}
		m.warnText = before.warnText // a new set of replicas is no reason to warn again
		fallthrough
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

// applyPause is the least time between two sets of replicas taken over. Sets that are published
// meanwhile are taken over together.
const applyPause = 20 * time.Millisecond

// applySets takes over the sets that sources publish, at once after a quiet time, until the
// registry closes.
func (r *registry) applySets() {
	for {
		select {
		case <-r.sources.changed:
		case <-r.closing:
			return
		}
		r.reapply("taking over the replicas of a source failed")
		r.onNewSet()
		select {
		case <-time.After(applyPause):
		case <-r.closing:
			return
		}
	}
}

// reapply applies the current configuration again, with what has changed beside it: the sets of
// sources, and processes that have restarted. failure is logged with an error.
func (r *registry) reapply(failure string) {
	r.applyMu.Lock() // before the table is read: the configuration must not be an older one
	defer r.applyMu.Unlock()
	if err := r.applyLocked(r.table.Load().config); err != nil {
		r.log.Error(failure, "error", err)
	}
}
