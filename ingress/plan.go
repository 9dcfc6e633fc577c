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

// planModels prepares every model of a configuration. Simulated engines are started; after an error
// they have been rolled back. The caller holds the registry's applyMu.
func planModels(c *config.Config, engines *simulatedEngines) ([]modelPlan, error) {
	var plans []modelPlan
	for _, m := range c.Models {
		p := modelPlan{config: m}
		var err error
		if p.build, err = routers.Lookup(m.Router.Class, m.Router.Kwargs); err == nil {
			p.endpoints, err = endpointsFor(m, engines)
		}
		if err != nil {
			engines.rollback()
			return nil, fmt.Errorf("model %s: %w", m.ID, err)
		}
		plans = append(plans, p)
	}
	return plans, nil
}

// endpointsFor returns the endpoints of a model's replicas. Simulated ones are started.
func endpointsFor(m config.Model, engines *simulatedEngines) ([]llmserver.Endpoint, error) {
	replicas := m.Replicas
	if m.Simulated != nil {
		var err error
		if replicas, err = engines.prepare(m); err != nil {
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
			Label:          replicaLabel(i, replica),
			URL:            replica.URL,
			Limit:          replica.MaxOngoingRequests,
			ConnectTimeout: m.ConnectTimeout,
			SendTimeout:    m.SendTimeout,
			ServedName:     m.ServedName,
			ProbePath:      cmp.Or(replica.HealthCheckPath, m.HealthCheckPath), // simulated replicas have none
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

// replicaLabel returns a name of replica i for error messages to clients if the ID is an address,
// which clients must not read; else "".
func replicaLabel(i int, r config.Replica) string {
	u, err := url.Parse(r.URL)
	if host, _, bad := net.SplitHostPort(r.ID); err != nil || bad != nil || host != u.Hostname() {
		return ""
	}
	return strconv.Itoa(i + 1)
}

// warnUnlisted logs that a replica does not list its model by the name that requests have there.
func (r *registry) warnUnlisted(e llmserver.Endpoint, listed []string) {
	r.log.Warn("a replica does not list the model; set served_model_name to a name that it lists, or start the engine with that name",
		"replica", e.ID, "model", e.Model, "served_model_name", e.ServedName, "listed", listed)
}
