package ingress

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"berth/llmserver"
)

// drains are the replicas that operators have drained, by the ID of the model and of the replica.
// They outlive reloads and other changes of the membership: a replica that leaves and comes back
// under its name is still drained. Only undrain, or the end of the process, ends a drain.
type drains struct {
	mu    sync.Mutex
	names map[replicaName]bool
}

// set begins or ends a drain and reports whether that changes anything.
func (d *drains) set(name replicaName, drained bool) (changed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] == drained {
		return false
	}
	if d.names == nil {
		d.names = make(map[replicaName]bool)
	}
	if d.names[name] = drained; !drained {
		delete(d.names, name)
	}
	return true
}

func (d *drains) has(name replicaName) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.names[name]
}

// list returns the names of all drained replicas in order.
func (d *drains) list() []replicaName {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.SortedFunc(maps.Keys(d.names), func(a, b replicaName) int {
		return cmp.Or(cmp.Compare(a.model, b.model), cmp.Compare(a.id, b.id))
	})
}

// endpoints returns the endpoints of all plans in order, those of drained replicas as draining. An
// endpoint that is draining for another reason stays so.
func (d *drains) endpoints(plans []modelPlan) (all []llmserver.Endpoint) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range plans {
		for _, e := range p.endpoints {
			e.Draining = e.Draining || d.names[replicaName{e.Model, e.ID}]
			all = append(all, e)
		}
	}
	return all
}

// setDrained begins or ends the drain of a replica, by applying the current configuration once
// more. It blocks during a reload. After an error nothing has changed.
func (r *registry) setDrained(name replicaName, drained bool) error {
	r.applyMu.Lock()
	defer r.applyMu.Unlock()
	if !r.drains.set(name, drained) {
		return nil
	}
	if err := r.applyLocked(r.table.Load().config); err != nil {
		r.drains.set(name, !drained)
		return err
	}
	if drained {
		r.log.Info("an operator drains a replica", "replica", name.id, "model", name.model)
	} else {
		r.log.Info("an operator ends the drain of a replica", "replica", name.id, "model", name.model)
	}
	return nil
}
