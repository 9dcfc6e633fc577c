package agent

import (
	"io"
	"net/http"
	"testing"
)

// endings are an engine's responses. A client that has read one to its end may reuse the slot at
// once.
var endings = map[string]http.HandlerFunc{
	"events with DONE": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {}\n\ndata: [DONE]\n\n")
		http.NewResponseController(w).Flush()
	},
	"events without DONE": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {}\n\n")
		http.NewResponseController(w).Flush()
	},
	"known length": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "3")
		io.WriteString(w, "abc")
	},
	"chunked": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, "a")
		http.NewResponseController(w).Flush()
		io.WriteString(w, "b")
	},
}

func TestAgentReleasesSlotBeforeTheEndIsWritten(t *testing.T) {
	for name, engine := range endings {
		t.Run(name, func(t *testing.T) {
			s := newTestAgent(t, 1, engine)
			for i := range 250 {
				header := []string{}
				if i%2 == 0 {
					header = []string{headerToken, s.mustReserve().String()}
				}
				resp, err := s.send(http.MethodPost, "/v1/completions", "{}", header...)
				if err != nil {
					t.Fatal(err)
				}
				if text, err := io.ReadAll(resp.Body); err != nil {
					t.Fatalf("%q, %v", text, err)
				}
				if r := s.agent.Read(); r.Ongoing != 0 {
					t.Fatalf("at the end of request %d, %d are reserved and %d run", i, r.Reserved, r.Running)
				}
				resp.Body.Close()
			}
		})
	}
}

// Between [DONE] and the end of the body the engine still works in the slot.
func TestAgentHoldsSlotUntilTheEngineEndsTheBody(t *testing.T) {
	end := make(chan struct{})
	var s *testAgent
	s = newTestAgent(t, 1, func(w http.ResponseWriter, _ *http.Request) {
		if s.calls.Load() > 1 {
			return // it should have been refused
		}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: [DONE]\n\n")
		http.NewResponseController(w).Flush()
		<-end
	})
	resp, err := s.send(http.MethodPost, "/v1/completions", "{}")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, len("data: [DONE]\n\n"))); err != nil {
		t.Fatal(err)
	}
	next := s.chat("")
	close(end)
	s.wantRefusal(next, http.StatusTooManyRequests, "slots_full", "full")
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	s.wantCounts(0, 0, 1)
}
