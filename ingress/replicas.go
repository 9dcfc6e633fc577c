package ingress

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/llmserver"
)

// maxListedIDs bounds the replicas listed by the error for an unknown one.
const maxListedIDs = 20

// replicaView is the JSON form of a replica. Its state is one of llmserver.States, or absent for a
// drained replica that is not in the configuration.
type replicaView struct {
	Model      string        `json:"model"`
	ID         string        `json:"id"`
	URL        string        `json:"url,omitempty"`
	Source     string        `json:"source,omitempty"` // of the replica: config
	State      string        `json:"state"`
	Since      time.Time     `json:"since,omitzero"` // of the state
	ForS       float64       `json:"for_s"`
	Reason     string        `json:"reason,omitempty"`
	Drained    bool          `json:"drained"` // by an operator
	Leaving    bool          `json:"leaving,omitempty"`
	Slots      slotsView     `json:"slots"`
	FirstByteS float64       `json:"first_byte_s,omitempty"` // mean of the last streams
	Ejected    uint64        `json:"ejections"`
	Failures   uint64        `json:"failures"` // failed responses
	Recent     []failureView `json:"recent_failures"`
	Changes    []changeView  `json:"recent_changes"`
}

type slotsView struct {
	Reserved int `json:"reserved"`
	Running  int `json:"running"`
	Capacity int `json:"capacity"`
	Others   int `json:"others"` // ongoing requests of other ingresses
}

type failureView struct {
	Time      time.Time `json:"time"`
	RequestID string    `json:"request_id"`
	Phase     string    `json:"phase"`
	Retried   bool      `json:"retried"`
	Reason    string    `json:"reason"`
}

type changeView struct {
	Time   time.Time `json:"time"`
	From   string    `json:"from"`
	To     string    `json:"to"`
	Reason string    `json:"reason"`
}

// listReplicas lists the replicas of all models, or of the one in the query, then those that have
// left but still have requests.
func (s *Server) listReplicas(w http.ResponseWriter, r *http.Request) {
	model, err := s.modelInQuery(r)
	if err != nil {
		toAPIError(err).write(w, r)
		return
	}
	views, present := []replicaView{}, make(map[replicaName]bool)
	add := func(replica *llmserver.Replica, leaving bool) {
		if v := s.viewReplica(replica); model == "" || v.Model == model {
			v.Leaving = leaving
			views = append(views, v)
			present[replicaName{v.Model, v.ID}] = true
		}
	}
	for _, m := range s.registry.table.Load().models {
		for _, replica := range m.replicas {
			add(replica, false)
		}
	}
	for _, replica := range s.registry.pool.Leaving() {
		add(replica, true)
	}
	for _, name := range s.registry.drains.list() {
		if !present[name] && (model == "" || name.model == model) {
			views = append(views, absentReplica(name, true))
		}
	}
	writeJSON(w, map[string]any{"replicas": views})
}

// modelInQuery returns the ID of the model named by the query, "" if there is none.
func (s *Server) modelInQuery(r *http.Request) (id string, err error) {
	name := r.URL.Query().Get("model")
	if name == "" {
		return "", nil
	}
	m := s.registry.table.Load().findModel(name)
	if m == nil {
		return "", unknownModel(name)
	}
	return m.config.ID, nil
}

// viewReplica returns the present state of a replica. The parts are read one after the other, so
// they may differ by a request.
func (s *Server) viewReplica(replica *llmserver.Replica) replicaView {
	e, status, usage := replica.Endpoint(), replica.Status(), replica.Usage()
	v := replicaView{
		Model: e.Model, ID: e.ID, URL: e.URL, Source: e.Source,
		State: status.State, Since: roundUTC(status.Since), ForS: time.Since(status.Since).Round(time.Millisecond).Seconds(), Reason: status.Reason,
		Drained:    s.registry.drains.has(replicaName{e.Model, e.ID}),
		Slots:      slotsView{usage.Reserved, usage.Running, usage.Limit, replica.Others()},
		FirstByteS: replica.FirstByteWait().Round(time.Microsecond).Seconds(),
		Ejected:    replica.Ejections(), Recent: []failureView{}, Changes: []changeView{},
	}
	total, recent := s.failures.of(e.Model, e.ID)
	v.Failures = total
	for _, f := range recent {
		v.Recent = append(v.Recent, failureView{roundUTC(f.at), f.requestID, f.phase, f.retried, f.reason})
	}
	for _, c := range status.Recent {
		v.Changes = append(v.Changes, changeView{roundUTC(c.At), c.From, c.To, c.Reason})
	}
	return v
}

// absentReplica returns the view of a replica that is not in the configuration.
func absentReplica(name replicaName, drained bool) replicaView {
	return replicaView{Model: name.model, ID: name.id, State: "absent", Drained: drained, Recent: []failureView{}, Changes: []changeView{}}
}

func roundUTC(t time.Time) time.Time { return t.UTC().Round(time.Millisecond) }

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.Encode(v)
}

// drainReplica returns the handler that begins or ends the drain of the replica in the path. A
// second call changes nothing and gets the same response: the replica.
func (s *Server) drainReplica(drained bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		model, err := s.modelInQuery(r)
		if err != nil {
			toAPIError(err).write(w, r)
			return
		}
		name, problem := s.registry.findReplica(model, r.PathValue("id"))
		if problem != nil {
			problem.write(w, r)
			return
		}
		if err := s.registry.setDrained(name, drained); err != nil {
			s.log.Error("the drain of a replica could not be changed", "replica", name.id, "model", name.model, "error", err)
			toAPIError(err).write(w, r)
			return
		}
		if replica := s.registry.replicaNamed(name); replica != nil {
			writeJSON(w, s.viewReplica(replica))
			return
		}
		writeJSON(w, absentReplica(name, s.registry.drains.has(name)))
	}
}

// replicaNamed returns the replica with this name in the current table, or nil.
func (r *registry) replicaNamed(name replicaName) *llmserver.Replica {
	if m := r.table.Load().findModel(name.model); m != nil {
		if i := slices.IndexFunc(m.replicas, func(replica *llmserver.Replica) bool { return replica.ID() == name.id }); i >= 0 {
			return m.replicas[i]
		}
	}
	return nil
}

// findReplica returns the name of the only replica with this ID in the model, or in all models if
// model is empty. A drained replica that has left the configuration is found, too.
func (r *registry) findReplica(model, id string) (replicaName, *apiError) {
	var found, known []replicaName
	for _, m := range r.table.Load().models {
		for _, replica := range m.replicas {
			known = append(known, replicaName{m.config.ID, replica.ID()})
		}
	}
	for _, name := range r.drains.list() {
		if !slices.Contains(known, name) {
			known = append(known, name)
		}
	}
	known = slices.DeleteFunc(known, func(name replicaName) bool { return model != "" && name.model != model })
	for _, name := range known {
		if name.id == id {
			found = append(found, name)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return replicaName{}, &apiError{404, invalidRequest, "replica_not_found", "", "There is no replica " + strconv.Quote(id) +
			"; the replicas are " + joinIDs(known) + ". Escape an ID with slashes, as in http%3A%2F%2F10.0.0.1%3A8000.", 0}
	default:
		return replicaName{}, &apiError{400, invalidRequest, "replica_ambiguous", "", "Several models have a replica " + strconv.Quote(id) +
			"; add ?model= with the name of one of them.", 0}
	}
}

// joinIDs returns the IDs of the first replicas as a text.
func joinIDs(names []replicaName) string {
	var ids []string
	for _, name := range names[:min(len(names), maxListedIDs)] {
		ids = append(ids, name.id)
	}
	text := strings.Join(ids, ", ")
	if more := len(names) - len(ids); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
