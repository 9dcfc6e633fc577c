package agent

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/llmserver"
)

// fuzzAgent is an agent with an unreachable engine, so that admitted requests get a response too.
func fuzzAgent() *Server {
	engine, err := llmserver.DialHTTP(llmserver.Endpoint{URL: "http://127.0.0.1:1", ConnectTimeout: time.Second})
	if err != nil {
		panic(err)
	}
	return New(Config{Engine: engine, Limit: 1, MaxBodyBytes: 1 << 10, ProbeTimeout: time.Second, Log: slog.New(slog.DiscardHandler)})
}

// wantSane checks that the slot is reserved exactly if the response says so, or was until its lease
// ended, which may be shorter than this test.
func wantSane(t *testing.T, s *Server, w *httptest.ResponseRecorder, accepted bool) {
	t.Helper()
	reading := s.Read()
	wantBalance(t, reading)
	if reserved := reading.Ongoing + int(reading.Expired); reserved > 1 || (reserved == 1) != accepted || reading.Running != 0 || reading.Waiting != 0 {
		t.Fatalf("response %d %s, and then %+v", w.Code, w.Body, reading)
	}
	if _, ok := parseReportHeader(w.Result().Header); !ok {
		t.Fatalf("response %d without a report: %v", w.Code, w.Result().Header)
	}
}

func FuzzAgentReservation(f *testing.F) {
	for _, body := range []string{
		`{"token":"0b42a62c-9a9b-4cd6-a2a8-2f0a2a1f8f2e","lease_s":10,"wait_ms":0}`, `{"token":null}`, `{"lease_s":1e999}`, `[]`, ``,
		`{"token":"urn:uuid:0b42a62c-9a9b-4cd6-a2a8-2f0a2a1f8f2e","lease_s":1e-9}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		s := fuzzAgent()
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/internal/slots", bytes.NewReader(body)))
		accepted := bytes.Contains(w.Body.Bytes(), []byte(`"accepted":true`))
		if w.Code != http.StatusBadRequest && (w.Code != http.StatusOK || !accepted) {
			t.Fatalf("response %d %s", w.Code, w.Body)
		}
		s.table.mu.Lock()
		for token, c := range s.table.reservations {
			if token == uuid.Nil || c.lease <= 0 || c.lease > MaxLease {
				t.Errorf("%v is reserved for %v", token, c.lease)
			}
		}
		s.table.mu.Unlock()
		wantSane(t, s, w, accepted)
	})
}

func FuzzAgentReleasedToken(f *testing.F) {
	for _, token := range []string{"0b42a62c-9a9b-4cd6-a2a8-2f0a2a1f8f2e", "", "..", "%00", "{0b42a62c-9a9b-4cd6-a2a8-2f0a2a1f8f2e}", "a/b"} {
		f.Add(token)
	}
	f.Fuzz(func(t *testing.T, token string) {
		s := fuzzAgent()
		r := httptest.NewRequest(http.MethodDelete, "/", nil)
		r.URL = &url.URL{Path: "/internal/slots/" + token, RawPath: "/internal/slots/" + url.PathEscape(token)}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		_, err := uuid.Parse(token)
		if ok := w.Code == http.StatusOK; ok != (err == nil) {
			t.Fatalf("the response to %q is %d", token, w.Code)
		}
		wantSane(t, s, w, false)
	})
}

func FuzzAgentTokenHeader(f *testing.F) {
	for _, token := range []string{"0b42a62c-9a9b-4cd6-a2a8-2f0a2a1f8f2e", "", " ", "\x00", "0", "00000000-0000-0000-0000-000000000000"} {
		f.Add(token)
	}
	f.Fuzz(func(t *testing.T, token string) {
		s := fuzzAgent()
		r := httptest.NewRequest(http.MethodPost, "/v1/completions", bytes.NewReader([]byte("{}")))
		r.Header.Set(headerToken, token)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		want := http.StatusConflict
		if token == "" {
			want = http.StatusServiceUnavailable // it got a slot, but the engine is unreachable
		}
		if w.Code != want {
			t.Fatalf("the response to %q is %d %s", token, w.Code, w.Body)
		}
		wantSane(t, s, w, false)
	})
}
