package config

import (
	"strings"
	"time"
)

// A urlOwner is the model with a given URL, and the URL's position.
type urlOwner struct {
	model *Model
	at    position
}

// model reads one entry of llm_configs.
func (r *reader) model(n *node) {
	m := defaultModel()
	simulated, replicas := n.get("simulated"), n.get("replicas")
	if simulated != nil {
		m.Simulated = defaultSimulated()
	}
	r.object(r.modelConfig(&m), rayModel...)(n)
	if n.kind != mapping {
		return
	}

	id := n.get("model_loading_config").get("model_id")
	if id == nil {
		r.problemf(n.at, "this model has no model_loading_config.model_id; set the name that clients use")
	} else if m.ID != "" {
		r.addName(m.ID, id.at)
	}
	m.fillIn()

	r.checkSources(n)
	if replicas != nil {
		r.list(r.modelReplica(&m))(replicas)
	}
	r.checkAuthority(&m, n)
	if m.KeepAliveWhileQueued && m.StreamKeepAlive == 0 {
		r.problemf(n.get("stream_keepalive_while_queued").at, "stream_keepalive_while_queued has no effect without stream_keepalive_s; set both, or remove it")
	}
	r.config.Models = append(r.config.Models, m)
}

// checkAuthority reports settings that contradict slot_authority.
func (r *reader) checkAuthority(m *Model, n *node) {
	if m.SlotAuthority == ReplicaCounts {
		r.checkAgentProbes(n)
	}
	switch secret := n.get("slot_secret_env"); {
	case m.SlotAuthority == ReplicaCounts && m.Simulated != nil:
		r.problemf(n.get("slot_authority").at, "simulated replicas have no agents; remove slot_authority, "+
			"or run berth llmserver --simulated and list it under replicas")
	case m.SlotAuthority == IngressCounts && secret != nil:
		r.problemf(secret.key, "slot_secret_env has no effect without agents; add slot_authority: replica, or remove it")
	}
}

// checkAgentProbes reports paths of probes in a model with agents, which have a path of their own.
func (r *reader) checkAgentProbes(n *node) {
	mappings := []*node{n.get("deployment_config")}
	if replicas := n.get("replicas"); replicas != nil {
		mappings = append(mappings, replicas.nodes...)
	}
	for _, m := range mappings {
		if path := m.get("health_check_path"); path != nil {
			r.problemf(path.key, "health_check_path has no effect with agents, which probe their engines themselves; "+
				"remove it, and start the agents with --health-check-path")
		}
	}
}

// timeouts reads the timeouts of a model and checks them against each other.
func (r *reader) timeouts(m *Model) func(*node) {
	return func(n *node) {
		n = r.currentKeys(n, renamedTimeouts)
		r.object(r.timeoutConfig(m))(n)
		r.checkTimeouts(m, n)
	}
}

// checkTimeouts reports timeouts that cannot fire before total_s.
func (r *reader) checkTimeouts(m *Model, timeouts *node) {
	for key, d := range map[string]time.Duration{
		"first_byte_s":            m.FirstByteTimeout,
		"idle_s":                  m.IdleTimeout,
		"unstreamed_first_byte_s": m.UnstreamedFirstByteTimeout,
	} {
		if n := timeouts.get(key); n != nil && m.TotalTimeout > 0 && d >= m.TotalTimeout {
			r.problemf(n.at, "%s has no effect: total_s ends every request after %v s; make it shorter or remove it",
				key, m.TotalTimeout.Seconds())
		}
	}
}

// addName registers a name for clients.
func (r *reader) addName(name string, at position) {
	if taken, ok := r.names[name]; ok {
		r.problemf(at, "duplicate model name %s, first used %s; give each model its own names", display(name), taken.from(at))
		return
	}
	r.names[name] = at
}

// alias reads an alias of a model.
func (r *reader) alias(m *Model) func(*node) {
	return func(n *node) {
		var name string
		if r.label(&name)(n); name != "" {
			m.Aliases = append(m.Aliases, name)
			r.addName(name, n.at)
		}
	}
}

// modelReplica reads a replica of a model.
func (r *reader) modelReplica(m *Model) func(*node) {
	ids := make(map[string]position)
	return func(n *node) {
		rep := defaultReplica(m)
		r.object(r.replica(&rep))(n)
		rep.fillIn()
		m.Replicas = append(m.Replicas, rep)

		address := n.get("url")
		if address == nil && n.kind == mapping {
			r.problemf(n.at, "%s has no url; set one like http://10.0.0.11:8000", n.name)
		}
		if rep.URL != "" && !r.addURL(rep.URL, urlOwner{m, address.at}) {
			return // a derived id would be a second problem of the same cause
		}
		at := n.at
		if written := n.get("id"); written != nil {
			at = written.at
		}
		if taken, ok := ids[rep.ID]; ok && rep.ID != "" {
			r.problemf(at, "duplicate replica id %s, first used %s; give each replica its own id", display(rep.ID), taken.from(at))
			return
		}
		ids[rep.ID] = at
	}
}

// addURL registers a URL for a model and reports whether the URL was new.
func (r *reader) addURL(url string, c urlOwner) bool {
	taken, ok := r.urls[url]
	switch {
	case !ok:
		r.urls[url] = c
	case taken.model == c.model:
		r.problemf(c.at, "duplicate replica %s, first listed %s; remove one of them", url, taken.at.from(c.at))
	default:
		r.problemf(c.at, "%s is already a replica of model %s %s; use aliases to give that model another name",
			url, display(taken.model.ID), taken.at.from(c.at))
	}
	return !ok
}

// routerClass reads the class of a policy, with or without its Python module.
func (r *reader) routerClass(dst *string) func(*node) {
	return func(n *node) {
		var written string
		if r.label(&written)(n); written == "" {
			return
		}
		short := written[strings.LastIndexAny(written, ".:")+1:]
		if short == "" {
			r.wrongValue(n, "the name of a class, like RoundRobinRouter")
			return
		}
		*dst = short
	}
}

// routerConfig reads a policy and validates it by [Checks].
func (r *reader) routerConfig(router *Router) func(*node) {
	return func(n *node) {
		before := len(r.problems)
		r.object(r.requestRouter(router), rayRequestRouter...)(n)
		if r.checks.Router == nil || len(r.problems) > before {
			return
		}
		err := r.checks.Router(router.Class, router.Kwargs)
		if err == nil {
			return
		}
		culprit := n.get("request_router_class")
		if r.checks.Router(router.Class, nil) == nil {
			culprit = n.get("request_router_kwargs")
		}
		at := n.at
		if culprit != nil {
			at = culprit.at
		}
		r.problemf(at, "%s", err)
	}
}
