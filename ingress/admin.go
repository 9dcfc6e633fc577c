package ingress

import (
	"cmp"
	"encoding/json"
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

// listSlots lists all live slots, the oldest first.
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
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{"slots": slots})
}
