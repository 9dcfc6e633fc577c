package ingress

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"berth/config"
	"berth/llmserver"
	"berth/llmserver/discovery"
)

// sources are the sources of replicas beside the configuration, each with its last set.
//
// A reload calls prepare for every model and then commit or rollback once for all, under applyMu; a
// source runs on as long as the configuration has the same settings for the model. The goroutine
// of a source takes no lock to publish: it stores the set and signals changed, and the registry
// takes the set over, see applySets. So sources never wait for a reload, and publishing often costs
// little.
type sources struct {
	log     *slog.Logger
	create  func(spec any, log *slog.Logger) (found discovery.Source, apiKey string, err error) // newSource, or a test's
	changed chan struct{}                                                                       // capacity 1: a set was published
	synced  atomic.Bool                                                                         // every source has published a set, and the sets are in use; never reset

	// Under applyMu:
	running    []*source
	prepared   []*source
	duplicates map[duplicate]bool // of the last pass; a duplicate is logged once

	goroutines sync.WaitGroup
}

// A source is a source of a model's replicas with the last set.
type source struct {
	discovery.Source
	model  string
	spec   any // the settings, comparable
	cancel context.CancelFunc
	apiKey string // of replicas without their own

	// set is the last set, nil before the first. A source with changed settings begins with the set
	// of its predecessor, and published is false until it has a set of its own.
	set       atomic.Pointer[[]llmserver.Endpoint]
	published atomic.Bool
}

// endpoints returns the last set. It must not be changed.
func (s *source) endpoints() []llmserver.Endpoint {
	if set := s.set.Load(); set != nil {
		return *set
	}
	return nil
}

// prepare finds or makes the sources of a model. After an error rollback must be called.
func (s *sources) prepare(m *config.Model) (found []*source, err error) {
	for _, spec := range sourceSpecs(m) {
		same := slices.IndexFunc(s.running, func(r *source) bool { return r.model == m.ID && r.spec == spec })
		if same >= 0 {
			found = append(found, s.running[same])
			continue
		}
		next := &source{model: m.ID, spec: spec}
		if next.Source, next.apiKey, err = s.create(spec, s.log.With("model", m.ID)); err != nil {
			return nil, err
		}
		for _, r := range s.running {
			if r.model == m.ID && reflect.TypeOf(r.spec) == reflect.TypeOf(spec) {
				next.set.Store(r.set.Load())
			}
		}
		found = append(found, next)
	}
	s.prepared = append(s.prepared, found...)
	return found, nil
}

// rollback forgets the prepared sources.
func (s *sources) rollback() { s.prepared = nil }

// commit stops the sources that were not prepared again, without waiting for them, starts the new
// ones, and reports whether there are any.
func (s *sources) commit() (running bool) {
	for _, old := range s.running {
		if !slices.Contains(s.prepared, old) {
			old.cancel()
		}
	}
	for _, next := range s.prepared {
		if next.cancel == nil {
			var ctx context.Context
			ctx, next.cancel = context.WithCancel(context.Background())
			s.goroutines.Go(func() { next.Run(ctx, func(set []llmserver.Endpoint) { s.publish(next, set) }) })
		}
	}
	s.running, s.prepared = s.prepared, nil
	return len(s.running) > 0
}

// publish makes set the last set of a source. The goroutine of the source calls it.
func (s *sources) publish(from *source, set []llmserver.Endpoint) {
	set = slices.Clone(set)
	for i := range set {
		set[i].Source = from.String()
		if set[i].APIKey == "" {
			set[i].APIKey = from.apiKey
		}
	}
	before := from.endpoints()
	from.set.Store(&set)
	if from.published.Swap(true) && slices.Equal(before, set) {
		return
	}
	s.logChange(from, before, set)
	select {
	case s.changed <- struct{}{}:
	default: // the pass that is due takes this set over, too
	}
}

// logChange logs a new set with its difference to the one before.
func (s *sources) logChange(from *source, before, set []llmserver.Endpoint) {
	s.log.Info("new set of replicas", "model", from.model, "source", from.String(), "replicas", len(set),
		"added", idsWithout(set, before), "removed", idsWithout(before, set),
		"draining", strings.Join(idsOf(slices.DeleteFunc(slices.Clone(set), func(e llmserver.Endpoint) bool { return !e.Draining })), " "))
}

// idsWithout returns the IDs of the endpoints that are in set and, with the same identity, not in
// other.
func idsWithout(set, other []llmserver.Endpoint) string {
	type identity struct{ url, instance string }
	known := make(map[identity]bool, len(other))
	for _, e := range other {
		known[identity{e.URL, e.Instance}] = true
	}
	return strings.Join(idsOf(slices.DeleteFunc(slices.Clone(set), func(e llmserver.Endpoint) bool {
		return known[identity{e.URL, e.Instance}]
	})), " ")
}

// idsOf returns the IDs of endpoints, at most 20 of them and then "…".
func idsOf(set []llmserver.Endpoint) (ids []string) {
	for i, e := range set {
		if i == 20 {
			return append(ids, "…")
		}
		ids = append(ids, e.ID)
	}
	return ids
}

// warnDuplicates logs the duplicates that the last pass did not have.
func (s *sources) warnDuplicates(now map[duplicate]bool) {
	for d := range now {
		if !s.duplicates[d] {
			s.log.Warn("a replica is listed twice; the first entry counts", "model", d.model, "replica", d.replica, "url", d.url,
				"source", d.source, "first", d.first)
		}
	}
	s.duplicates = now
}

// allPublished reports whether every prepared source has published a set.
func (s *sources) allPublished() bool {
	return !slices.ContainsFunc(s.prepared, func(p *source) bool { return !p.published.Load() })
}

// stop ends all sources, without waiting for them. applyMu is held.
func (s *sources) stop() {
	for _, r := range s.running {
		r.cancel()
	}
}

// wait blocks until all sources have ended.
func (s *sources) wait() { s.goroutines.Wait() }

// A fileSpec is the path of a file with replicas.
type fileSpec string

// sourceSpecs returns the settings of a model's sources, in the order in which they count.
func sourceSpecs(m *config.Model) (specs []any) {
	if m.File != "" {
		specs = append(specs, fileSpec(m.File))
	}
	if m.DNS != nil {
		specs = append(specs, *m.DNS)
	}
	if m.Kubernetes != nil {
		specs = append(specs, *m.Kubernetes)
	}
	return specs
}

// Sources returns the sources of a model's replicas beside those in the configuration, not running.
// The error is that of Apply for their settings.
func Sources(m *config.Model, log *slog.Logger) (all []discovery.Source, err error) {
	for _, spec := range sourceSpecs(m) {
		source, _, err := newSource(spec, log)
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", m.ID, err)
		}
		all = append(all, source)
	}
	return all, nil
}

// newSource returns the source with the given settings and the API key of its replicas.
func newSource(spec any, log *slog.Logger) (found discovery.Source, apiKey string, err error) {
	switch spec := spec.(type) {
	case fileSpec:
		found = discovery.NewFile(string(spec), parseReplicas(string(spec)), log)
	case config.DNS:
		found = discovery.NewDNS(discovery.DNS{
			Name: spec.Name, Type: spec.Type, Port: spec.Port, Server: spec.Server, Period: spec.Period, Keep: spec.Keep,
		}, log)
		apiKey, err = engineKey(spec.APIKeyEnv)
	case config.Kubernetes:
		if apiKey, err = engineKey(spec.APIKeyEnv); err == nil {
			found, err = discovery.NewKubernetes(discovery.Kubernetes{
				Service: spec.Service, Selector: spec.Selector, Port: spec.Port, Namespace: spec.Namespace, Kubeconfig: spec.Kubeconfig,
			}, log)
		}
	default:
		panic(fmt.Sprintf("BUG: settings of an unknown source: %T", spec))
	}
	if err != nil {
		err = fmt.Errorf("source of replicas: %w", err)
	}
	return found, apiKey, err
}

// parseReplicas returns the parser of a file with replicas.
func parseReplicas(path string) func([]byte) ([]llmserver.Endpoint, error) {
	return func(data []byte) ([]llmserver.Endpoint, error) {
		replicas, err := config.ParseReplicas(data, path)
		if err != nil {
			return nil, err
		}
		return replicaEndpoints(replicas)
	}
}
