package agent

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

// endings are answers, and how a client knows that it has the last byte.
var endings = map[string]struct {
	engine http.HandlerFunc
	last   string // what the answer ends with; empty: its end
}{
	"events with DONE": {func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {}\n\n")
		http.NewResponseController(w).Flush()
		io.WriteString(w, "data: [DONE]\n\n")
		http.NewResponseController(w).Flush()
		<-r.Context().Done() // an engine may take its time after that
	}, "data: [DONE]\n\n"},
	"events without DONE": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {}\n\n")
		http.NewResponseController(w).Flush()
	}, ""},
	"known length": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "3")
		io.WriteString(w, "abc")
	}, "abc"},
	"chunked": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, "a")
		http.NewResponseController(w).Flush()
		io.WriteString(w, "b")
	}, ""},
}

// readTo reads until the text ends with last, or to the end if that is empty.
func readTo(r io.Reader, last string) (string, error) {
	if last == "" {
		text, err := io.ReadAll(r)
		return string(text), err
	}
	var text strings.Builder
	for buf := make([]byte, 1); ; {
		n, err := r.Read(buf)
		text.Write(buf[:n])
		if err != nil || strings.HasSuffix(text.String(), last) {
			return text.String(), err
		}
	}
}

// Whoever has the last byte may ask for the slot at once.
func TestAFinishedRequestHasLeftTheCountsWhenItsEndIsSeen(t *testing.T) {
	for name, ending := range endings {
		t.Run(name, func(t *testing.T) {
			s := newStand(t, 1, ending.engine)
			for i := range 250 {
				header := []string{}
				if i%2 == 0 {
					header = []string{headerToken, s.reserved().String()}
				}
				ctx, stop := context.WithCancel(t.Context())
				resp, err := s.sendBody(ctx, http.MethodPost, "/v1/completions", strings.NewReader("{}"), header...)
				if err != nil {
					t.Fatal(err)
				}
				if text, err := readTo(resp.Body, ending.last); err != nil && err != io.EOF || !strings.HasSuffix(text, ending.last) {
					t.Fatalf("%q, %v", text, err)
				}
				if r := s.agent.Read(); r.Ongoing != 0 {
					t.Fatalf("at the end of request %d, %d are reserved and %d run", i, r.Reserved, r.Running)
				}
				stop()
				resp.Body.Close()
			}
		})
	}
}
