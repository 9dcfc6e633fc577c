package ingress

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"

	"berth/config"
	"berth/llmserver"
	"berth/routers"
)

// A modelPlan is the fallible part of a model's reload, already done.
type modelPlan struct {
	config    config.Model
	build     routers.Builder
	endpoints []llmserver.Endpoint
}

// planModels prepares every model of a configuration. Simulated engines are started and sources
// prepared; after an error both have been rolled back. The caller holds the registry's applyMu.
func planModels(c *config.Config, engines *simulatedEngines, s *sources) (plans []modelPlan, err error) {
	defer func() {
		if err != nil {
			engines.rollback()
			s.rollback()
		}
	}()
	for _, m := range c.Models {
		p := modelPlan{config: m}
		if p.build, err = routers.Lookup(m.Router.Class, m.Router.Kwargs); err == nil {
			p.endpoints, err = configuredEndpoints(m, engines)
		}
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", m.ID, err)
		}
		plans = append(plans, p)
	}
	merge := newMerge(plans)
	for i := range plans {
		m := &plans[i].config
		found, err := s.prepare(m)
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", m.ID, err)
		}
		for _, source := range found {
			merge.add(&plans[i], source.endpoints())
		}
		if err := describeEndpoints(m, plans[i].endpoints); err != nil {
			return nil, fmt.Errorf("model %s: %w", m.ID, err)
		}
	}
	s.warnDuplicates(merge.duplicates)
	return plans, nil
}

// configuredEndpoints returns the endpoints of the replicas in a model's configuration. Simulated
// ones are started.
func configuredEndpoints(m config.Model, engines *simulatedEngines) ([]llmserver.Endpoint, error) {
	replicas, source := m.Replicas, "config"
	if m.Simulated != nil {
		var err error
		if replicas, err = engines.prepare(m); err != nil {
			return nil, err
		}
		source = "simulated"
	}
	endpoints, err := replicaEndpoints(replicas)
	for i := range endpoints {
		endpoints[i].Source = source
	}
	return endpoints, err
}

// replicaEndpoints returns the endpoints of replicas, as those of a source.
func replicaEndpoints(replicas []config.Replica) ([]llmserver.Endpoint, error) {
	endpoints := make([]llmserver.Endpoint, len(replicas))
	for i, r := range replicas {
		key, err := engineKey(r.APIKeyEnv)
		if err != nil {
			return nil, fmt.Errorf("replica %s: %w", r.ID, err)
		}
		endpoints[i] = llmserver.Endpoint{ID: r.ID, URL: r.URL, Limit: r.MaxOngoingRequests, ProbePath: r.HealthCheckPath, APIKey: key}
	}
	return endpoints, nil
}

// engineKey returns the API key of an engine in an environment variable, "" without a variable.
func engineKey(variable string) (string, error) {
	key := os.Getenv(variable)
	if variable != "" && key == "" {
		return "", fmt.Errorf("the environment variable %s, which should hold its key, is not set", variable)
	}
	return key, nil
}

// describeEndpoints sets the fields of endpoints that belong to their model.
func describeEndpoints(m *config.Model, endpoints []llmserver.Endpoint) error {
	secret := os.Getenv(m.SlotSecretEnv)
	if m.SlotSecretEnv != "" && secret == "" {
		return fmt.Errorf("the environment variable %s, which should hold the secret of its agents, is not set", m.SlotSecretEnv)
	}
	for i := range endpoints {
		e := &endpoints[i]
		e.Model, e.Label = m.ID, replicaLabel(i, *e)
		e.Limit = cmp.Or(e.Limit, m.MaxOngoingRequests)
		e.ConnectTimeout, e.SendTimeout = m.ConnectTimeout, m.SendTimeout
		e.ProbePath = cmp.Or(e.ProbePath, m.HealthCheckPath)
		if m.SlotAuthority != config.ReplicaCounts { // an agent's connections are for requests with slots
			e.ServedName = m.ServedName
		}
		e.ProbeEvery, e.ProbeTimeout = m.HealthCheckPeriod, m.HealthCheckTimeout
		e.CountsSlots, e.SlotSecret = m.SlotAuthority == config.ReplicaCounts, secret
	}
	return nil
}

// replicaLabel returns a name of replica i for error messages to clients if the ID is an address,
// which clients must not read; else "".
func replicaLabel(i int, e llmserver.Endpoint) string {
	u, err := url.Parse(e.URL)
	if host, _, bad := net.SplitHostPort(e.ID); err != nil || bad != nil || host != u.Hostname() {
		return ""
	}
	return strconv.Itoa(i + 1)
}

// A merge combines the endpoints of all models. Of two endpoints with one URL, or with one ID in a
// model, the first counts, those of the configuration before all others: one process must not be
// counted twice, and IDs are names in the hash ring and in metrics.
type merge struct {
	urls       map[string]string // URL to the source
	ids        map[[2]string]string
	duplicates map[duplicate]bool
}

// A duplicate is an endpoint that does not count.
type duplicate struct{ model, replica, url, source, first string }

// newMerge returns a merge of the endpoints that the plans have already. Duplicates among these are
// errors, which Pool.Set reports.
func newMerge(plans []modelPlan) *merge {
	m := &merge{make(map[string]string), make(map[[2]string]string), make(map[duplicate]bool)}
	for _, p := range plans {
		for _, e := range p.endpoints {
			m.urls[e.URL], m.ids[[2]string{p.config.ID, e.ID}] = e.Source, e.Source
		}
	}
	return m
}

// add adds the endpoints that are no duplicates to a plan.
func (m *merge) add(p *modelPlan, endpoints []llmserver.Endpoint) {
	for _, e := range endpoints {
		id := [2]string{p.config.ID, e.ID}
		if first := cmp.Or(m.urls[e.URL], m.ids[id]); first != "" {
			m.duplicates[duplicate{p.config.ID, e.ID, e.URL, e.Source, first}] = true
			continue
		}
		m.urls[e.URL], m.ids[id] = e.Source, e.Source
		p.endpoints = append(p.endpoints, e)
	}
}

// warnUnlisted logs that a replica does not list its model by the name that requests have there.
func (r *registry) warnUnlisted(e llmserver.Endpoint, listed []string) {
	r.log.Warn("a replica does not list the model; set served_model_name to a name that it lists, or start the engine with that name",
		"replica", e.ID, "model", e.Model, "served_model_name", e.ServedName, "listed", listed)
}
