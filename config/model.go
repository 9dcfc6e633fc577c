package config

import (
	"strings"
	"time"
)

// A claim is a URL that a model already lists.
type claim struct {
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
		r.fail(n.at, "this model needs model_loading_config.model_id, the name that clients use")
	} else if m.ID != "" {
		r.claimName(m.ID, id.at)
	}
	m.fillIn()

	switch {
	case simulated != nil && replicas != nil:
		r.fail(simulated.key, "a model has either replicas or simulated; remove one of them")
	case simulated == nil && replicas == nil:
		r.fail(n.at, "this model has no replicas; list their URLs under replicas, or add simulated: {}")
	case replicas != nil && replicas.kind == sequence && len(replicas.nodes) == 0:
		r.fail(replicas.at, "replicas is empty; list at least one URL")
	}
	if replicas != nil {
		r.list(r.replicaOf(&m))(replicas)
	}
	r.checkAuthority(&m, n)
	r.config.Models = append(r.config.Models, m)
}

// checkAuthority reports what does not go with who counts the slots.
func (r *reader) checkAuthority(m *Model, n *node) {
	switch secret := n.get("slot_secret_env"); {
	case m.SlotAuthority == ReplicaCounts && m.Simulated != nil:
		r.fail(n.get("slot_authority").at, "simulated replicas in this process have no agents to count; remove slot_authority, or run berth llmserver --simulated and list it under replicas")
	case m.SlotAuthority == IngressCounts && secret != nil:
		r.fail(secret.key, "slot_secret_env is for the replicas' agents; add slot_authority: replica or remove it")
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

// checkTimeouts reports timeouts that can never fire because total_s fires first.
func (r *reader) checkTimeouts(m *Model, timeouts *node) {
	for key, d := range map[string]time.Duration{
		"first_byte_s":            m.FirstByteTimeout,
		"idle_s":                  m.IdleTimeout,
		"unstreamed_first_byte_s": m.UnstreamedFirstByteTimeout,
	} {
		if n := timeouts.get(key); n != nil && m.TotalTimeout > 0 && d >= m.TotalTimeout {
			r.fail(n.at, "%s has no effect: total_s ends every request after %v s; make it shorter or remove it",
				key, m.TotalTimeout.Seconds())
		}
	}
}

// claimName reserves a name that clients may use.
func (r *reader) claimName(name string, at position) {
	if taken, ok := r.names[name]; ok {
		r.fail(at, "the model name %s is already taken %s; give each model names of its own", display(name), taken.from(at))
		return
	}
	r.names[name] = at
}

// aliasOf reads a further name of a model.
func (r *reader) aliasOf(m *Model) func(*node) {
	return func(n *node) {
		var name string
		if r.label(&name)(n); name != "" {
			m.Aliases = append(m.Aliases, name)
			r.claimName(name, n.at)
		}
	}
}

// replicaOf reads a replica of a model.
func (r *reader) replicaOf(m *Model) func(*node) {
	ids := make(map[string]position)
	return func(n *node) {
		rep := defaultReplica(m)
		r.object(r.replica(&rep))(n)
		rep.fillIn()
		m.Replicas = append(m.Replicas, rep)

		address := n.get("url")
		if address == nil && n.kind == mapping {
			r.fail(n.at, "%s needs a url, like http://10.0.0.11:8000", n.name)
		}
		if rep.URL != "" && !r.claimURL(rep.URL, claim{m, address.at}) {
			return // its id, if left out, would be a second problem of the same cause
		}
		at := n.at
		if written := n.get("id"); written != nil {
			at = written.at
		}
		if taken, ok := ids[rep.ID]; ok && rep.ID != "" {
			r.fail(at, "the replica id %s is already taken %s; give each replica an id of its own", display(rep.ID), taken.from(at))
			return
		}
		ids[rep.ID] = at
	}
}

// claimURL reserves a URL for a model and tells whether it was free.
func (r *reader) claimURL(url string, c claim) bool {
	taken, ok := r.urls[url]
	switch {
	case !ok:
		r.urls[url] = c
	case taken.model == c.model:
		r.fail(c.at, "%s is already a replica of this model %s; remove one of them", url, taken.at.from(c.at))
	default:
		r.fail(c.at, "%s already serves the model %s %s; to give that model a second name, use its aliases",
			url, display(taken.model.ID), taken.at.from(c.at))
	}
	return !ok
}

// class reads a policy's class, written with its Python module or without.
func (r *reader) class(dst *string) func(*node) {
	return func(n *node) {
		var written string
		if r.label(&written)(n); written == "" {
			return
		}
		short := written[strings.LastIndexAny(written, ".:")+1:]
		if short == "" {
			r.mismatch(n, "the name of a class, like RoundRobinRouter")
			return
		}
		*dst = short
	}
}

// router reads a policy and has it checked.
func (r *reader) router(router *Router) func(*node) {
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
		r.fail(at, "%s", err)
	}
}
