package ingress

import (
	"cmp"
	"net/http"
	"net/http/pprof"
	"slices"
	"time"
)

// adminRoutes returns the handler of the admin listener. Clients and web pages must not reach that
// listener: see guardAdmin.
func (s *Server) adminRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.telemetry.MetricsHandler())
	mux.HandleFunc("GET /internal/slots", s.listSlots)
	mux.HandleFunc("GET /internal/replicas", s.listReplicas)
	mux.HandleFunc("POST /internal/replicas/{id}/drain", s.drainReplica(true))
	mux.HandleFunc("POST /internal/replicas/{id}/undrain", s.drainReplica(false))
	mux.HandleFunc("GET /internal/decisions", s.telemetry.ServeDecisions)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/", s.serveControl)
	return s.guardAdmin(mux)
}

// liveSlot is the JSON form of a slot.
type liveSlot struct {
	Model     string  `json:"model"`
	Replica   string  `json:"replica"`
	State     string  `json:"state"` // reserved or running
	AgeS      float64 `json:"age_s"`
	RequestID string  `json:"request_id"`
}

// maxWaiting bounds the queued requests of one model that listSlots lists.
const maxWaiting = 256

// waitingRequest is the JSON form of a queued request.
type waitingRequest struct {
	Model     string  `json:"model"`
	State     string  `json:"state"` // waiting
	For       string  `json:"for"`   // the replica ranked first, or any
	AgeS      float64 `json:"age_s"`
	RequestID string  `json:"request_id"`
}

// listWaiting lists the queued requests of all models, the oldest of each model first. omitted is
// the number of those beyond maxWaiting.
func (s *Server) listWaiting(now time.Time) (waiting []waitingRequest, omitted int) {
	waiting = []waitingRequest{}
	for _, m := range s.registry.table.Load().models {
		listed := m.router.Waiting(maxWaiting)
		for _, q := range listed {
			waiting = append(waiting, waitingRequest{m.config.ID, "waiting", cmp.Or(q.Replica, "any"), now.Sub(q.Since).Seconds(), q.RequestID})
		}
		omitted += max(0, m.router.QueueLength()-len(listed))
	}
	return waiting, omitted
}

// listSlots lists all live slots, the oldest first, and the requests that wait for one.
func (s *Server) listSlots(w http.ResponseWriter, _ *http.Request) {
	now, slots := time.Now(), []liveSlot{}
	for _, replica := range s.registry.allReplicas() {
		for _, slot := range replica.Slots() {
			state := "reserved"
			if slot.Running {
				state = "running"
			}
			slots = append(slots, liveSlot{replica.Endpoint().Model, replica.ID(), state, now.Sub(slot.Since).Seconds(), slot.Holder})
		}
	}
	slices.SortStableFunc(slots, func(a, b liveSlot) int { return cmp.Compare(b.AgeS, a.AgeS) })
	waiting, omitted := s.listWaiting(now)
	writeJSON(w, map[string]any{"slots": slots, "waiting": waiting, "waiting_omitted": omitted})
}
