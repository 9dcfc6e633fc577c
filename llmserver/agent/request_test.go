package agent

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestAgentConsumesTokenOnceAndKeepsItFromTheEngine(t *testing.T) {
	seen := make(chan http.Header, 1)
	s := newTestAgent(t, 1, func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Clone()
		w.Header().Set(headerRefused, refusedFull) // an engine must not be able to send the agent's headers
		w.Header().Set(headerOngoing, "77")
		w.Header().Set("X-Own", "kept")
		io.WriteString(w, "answer")
	})
	token := s.mustReserve().String()
	a := s.call(http.MethodPost, "/v1/chat/completions?a=b", "{}", headerToken, token, "X-Client", "kept")
	if a.StatusCode != http.StatusOK || a.text != "answer" || a.Header.Get("X-Own") != "kept" || a.Header.Get(headerRefused) != "" || a.Header.Get(headerOngoing) == "77" {
		t.Errorf("%s %v %q", a.Status, a.Header, a.text)
	}
	if got := <-seen; got.Get(headerToken) != "" || got.Get("X-Client") != "kept" {
		t.Errorf("the engine saw %v", got)
	}
	s.wantCounts(0, 0, 1)
	s.wantRefusal(s.chat(token), http.StatusConflict, "unknown_slot_token", "unknown_token")
	s.wantCounts(0, 0, 1)
}

// A token that is not reserved is refused even while slots are free.
func TestAgentRefusesUnknownTokensWithoutCallingTheEngine(t *testing.T) {
	s := newTestAgent(t, 3, nil)
	released, expired := s.mustReserve(), uuid.New()
	s.call(http.MethodDelete, "/internal/slots/"+released.String(), "")
	s.call(http.MethodPost, "/internal/slots", `{"token":"`+expired.String()+`","lease_s":0.001}`)
	eventually(t, "the end of a lease", func() bool { return s.agent.Read().Expired == 1 })
	for what, token := range map[string]string{
		"forged": uuid.NewString(), "malformed": "x", "zero": uuid.Nil.String(), "two": uuid.NewString() + "," + uuid.NewString(),
		"released": released.String(), "expired": expired.String(),
	} {
		t.Run(what, func(t *testing.T) {
			s.wantRefusal(s.chat(token), http.StatusConflict, "unknown_slot_token", "unknown_token")
		})
	}
	s.wantCounts(0, 0, 0)
}

func TestAgentRequestWithoutTokenTakesFreeSlotOrIsRefused(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	if a := s.chat(""); a.StatusCode != http.StatusOK {
		t.Errorf("with a free slot: %s", a.Status)
	}
	token := s.mustReserve()
	a := s.chat("")
	s.wantRefusal(a, http.StatusTooManyRequests, "slots_full", "full")
	if a.Header.Get("Retry-After") == "" {
		t.Error("it does not say when to come again")
	}
	s.wantCounts(1, 0, 1)
	s.agent.Drain()
	s.wantRefusal(s.chat(""), http.StatusServiceUnavailable, "draining", "draining")
	if a := s.chat(token.String()); a.StatusCode != http.StatusOK {
		t.Errorf("what was reserved before the drain: %s", a.Status)
	}
	s.wantCounts(0, 0, 2)
	<-s.agent.Drained()
}

// A slow upload must not hold a slot.
func TestAgentReadsBodyBeforeTakingASlot(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	body, client := io.Pipe()
	status := make(chan int, 1)
	go func() {
		resp, err := s.sendBody(t.Context(), http.MethodPost, "/v1/completions", body)
		if err != nil {
			t.Error(err)
			close(status)
			return
		}
		resp.Body.Close()
		status <- resp.StatusCode
	}()
	io.WriteString(client, `{"prompt":`)
	token := s.mustReserve() // the request is still uploading: its slot is free
	s.call(http.MethodDelete, "/internal/slots/"+token.String(), "")
	if r := s.agent.Read(); r.Unreserved != 0 || s.calls.Load() != 0 {
		t.Errorf("half a request has got a slot: %+v", r)
	}
	io.WriteString(client, `"x"}`)
	client.Close()
	if got := <-status; got != http.StatusOK {
		t.Errorf("the response is %d", got)
	}
	s.wantCounts(0, 0, 1)
}

func TestAgentManagementCallsTakeNoSlot(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	s.mustReserve()
	calls := int64(0)
	for _, path := range []string{"/sleep", "/wake_up", "/flush_cache", "/update_weights", "/v1/load_lora_adapter", "/v1/responses/r/cancel"} {
		if a := s.call(http.MethodPost, path, "{}"); a.StatusCode != http.StatusOK {
			t.Errorf("POST %s: %s", path, a.Status)
		}
		calls++
	}
	for _, path := range []string{"/v1/models", "/v1/models/a%2Fb", "/version"} {
		if a := s.call(http.MethodGet, path, ""); a.StatusCode != http.StatusOK {
			t.Errorf("GET %s: %s", path, a.Status)
		}
		calls++
	}
	s.wantCounts(1, 0, calls)
}

// A token is consumed or refused, never ignored; otherwise its slot would stay reserved.
func TestAgentConsumesTokenOfRequestThatNeedsNoSlot(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	calls := int64(0)
	for _, c := range [][2]string{{http.MethodGet, "/v1/models"}, {http.MethodPost, "/v1/load_lora_adapter"}} {
		if a := s.call(c[0], c[1], "{}", headerToken, s.mustReserve().String()); a.StatusCode != http.StatusOK {
			t.Errorf("%v: %s", c, a.Status)
		}
		calls++
		s.wantCounts(0, 0, calls)
		s.wantRefusal(s.call(c[0], c[1], "{}", headerToken, uuid.NewString()), http.StatusConflict, "unknown_slot_token", "unknown_token")
	}
	s.wantCounts(0, 0, calls)
}

func TestAgentReleasesSlotOfTooLargeBody(t *testing.T) {
	s := newTestAgent(t, 1, nil, func(c *Config) { c.MaxBodyBytes = 10 })
	for _, token := range []string{"", s.mustReserve().String()} {
		header := []string{headerToken, token}
		if token == "" {
			header = nil
		}
		a := s.call(http.MethodPost, "/v1/completions", strings.Repeat("x", 11), header...)
		s.wantRefusal(a, http.StatusRequestEntityTooLarge, "request_too_large", "")
	}
	s.wantCounts(0, 0, 0)
}

func TestAgentBreaksConnectionWhenTheEngineDoes(t *testing.T) {
	tests := map[string]struct {
		engine http.HandlerFunc
		text   string // received before the break; empty: not even a header
	}{
		"before its answer": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, ""},
		"between events": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "data: {}\n\n")
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "data: {}\n\n"},
		"in a chunked answer": {func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "half")
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "half"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newTestAgent(t, 1, test.engine)
			resp, err := s.send(http.MethodPost, "/v1/completions", "{}", headerToken, s.mustReserve().String())
			if test.text == "" {
				if err == nil {
					t.Errorf("the response is %s", resp.Status)
				}
			} else {
				text, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if string(text) != test.text || err == nil {
					t.Errorf("%q and %v arrived", text, err)
				}
			}
			eventually(t, "the slot", func() bool { return s.agent.Read().Ongoing == 0 })
			s.wantCounts(0, 0, 1)
		})
	}
}

func TestAgentMarksUnreachableEngineAsRefusal(t *testing.T) {
	s := newTestAgent(t, 1, nil, func(c *Config) { c.Engine = unreachableEngine(t) })
	s.wantRefusal(s.chat(s.mustReserve().String()), http.StatusServiceUnavailable, "engine_down", "engine_down")
	s.wantRefusal(s.chat(""), http.StatusServiceUnavailable, "engine_down", "engine_down")
	s.wantCounts(0, 0, 0)
}

// A client disconnect reaches the engine at once and releases the slot.
func TestAgentForwardsClientDisconnect(t *testing.T) {
	for _, phase := range []string{"before the answer", "in a stream"} {
		t.Run(phase, func(t *testing.T) {
			begun, gone := make(chan struct{}), make(chan struct{})
			s := newTestAgent(t, 1, func(w http.ResponseWriter, r *http.Request) {
				if phase == "in a stream" {
					w.Header().Set("Content-Type", "text/event-stream")
					io.WriteString(w, "data: {}\n\n")
					http.NewResponseController(w).Flush()
				}
				close(begun)
				<-r.Context().Done()
				close(gone)
			})
			ctx, stop := context.WithCancel(t.Context())
			token := s.mustReserve().String()
			done := make(chan struct{})
			go func() {
				defer close(done)
				resp, err := s.sendBody(ctx, http.MethodPost, "/v1/completions", strings.NewReader("{}"), headerToken, token)
				if err == nil {
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			<-begun
			s.wantCounts(0, 1, 1)
			stop()
			<-done
			select {
			case <-gone:
			case <-time.After(10 * time.Second):
				t.Fatal("the engine has not heard of it")
			}
			eventually(t, "the slot", func() bool { return s.agent.Read().Ongoing == 0 })
		})
	}
}

func TestAgentServesHTTP2(t *testing.T) {
	s := newTestAgent(t, 1, endings["events without DONE"])
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	s.client.Transport = transport
	a := s.chat(s.mustReserve().String())
	if a.ProtoMajor != 2 || a.StatusCode != http.StatusOK || a.text != "data: {}\n\n" {
		t.Errorf("HTTP/%d %s %q", a.ProtoMajor, a.Status, a.text)
	}
	s.wantRefusal(s.chat(uuid.NewString()), http.StatusConflict, "unknown_slot_token", "unknown_token")
	s.wantCounts(0, 0, 1)
}
