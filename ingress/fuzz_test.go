package ingress

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"

	"berth/ingress/telemetry"
	"berth/internal/openai"
)

// fuzzed is a server whose requests are fuzzed, with one replica that responds "ok" to every
// request.
type fuzzed struct {
	handler http.Handler
	came    chan seen // the last request as the replica received it, if it did
}

func newFuzzed(f *testing.F) *fuzzed {
	z := &fuzzed{came: make(chan seen, 1)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet { // for a stored response
			http.NotFound(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		z.came <- seen{r.URL.Path, string(body), r.Header, r.ContentLength}
		ok(w, r)
	}))
	f.Cleanup(server.Close)
	c := configured(modelOn("m", server.URL))
	c.HTTP.BodyTimeout, c.Admin.Address = 0, ""
	s, err := New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	z.handler = s.routes()
	return z
}

// send parses a request as net/http does and serves it. It returns nil if net/http rejects the
// text.
func (z *fuzzed) send(raw string) (*http.Request, *httptest.ResponseRecorder) {
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
	if err != nil || !httpguts.ValidHostHeader(r.Host) {
		return nil, nil
	}
	for name, values := range r.Header {
		if !httpguts.ValidHeaderFieldName(name) || slices.ContainsFunc(values, func(v string) bool { return !httpguts.ValidHeaderFieldValue(v) }) {
			return nil, nil
		}
	}
	sent := r.Clone(r.Context()) // a handler may change what it is given
	w := httptest.NewRecorder()
	z.handler.ServeHTTP(w, r)
	return sent, w
}

// judge checks that a request was either forwarded and responded to by the replica, or rejected as
// the client's fault, in the right form and without being forwarded. It returns the request as the
// replica received it, nil if it did not.
func (z *fuzzed) judge(t *testing.T, r *http.Request, w *httptest.ResponseRecorder) *seen {
	t.Helper()
	select {
	case s := <-z.came:
		if w.Code != http.StatusOK || w.Body.String() != "ok" {
			t.Fatalf("the replica's response arrived as %d %q", w.Code, w.Body)
		}
		if openai.IsManagementPath(s.uri) || !openai.IsCleanPath(s.uri) {
			t.Fatalf("the replica was sent to %q", s.uri)
		}
		return &s
	default:
	}
	timedOut := r.Header.Get(timeoutHeader) != "" && w.Code/100 == 5
	if w.Code < 400 || w.Code >= 500 && !timedOut {
		if r.Method != http.MethodPost && w.Code == http.StatusOK {
			return nil // a list of models, say
		}
		t.Fatalf("rejected with %d %s", w.Code, w.Body)
	}
	if r.Method == http.MethodHead {
		return nil
	}
	if openai.IsAnthropicPath(r.URL.Path) {
		var e anthropicError
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Type != "error" || e.Error.Message == "" {
			t.Fatalf("rejected with %s", w.Body)
		}
		return nil
	}
	var e errorBody
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Error.Message == "" || e.Error.Code == nil || e.Error.Type == "" {
		t.Fatalf("rejected with %s", w.Body)
	}
	return nil
}

const modelM = `{"model":"m"}`

func FuzzHeader(f *testing.F) {
	z := newFuzzed(f)
	for _, seed := range []string{
		"", "X: y", "x-request-id: a b", "Content-Type: application/json; charset=utf-8", "Content-Type: multipart/form-data; boundary=B",
		"Content-Encoding: gzip", "Connection: close, X\r\nX: y", "Transfer-Encoding: chunked", "Expect: 100-continue", "TE: trailers\r\nTrailer: X",
		"X-Reserved-Slot-Token: x\r\nX-Slot-Refused: full", "X-Slot-Secret: x\r\nX-Slot-Holder: y\r\nX-Slot-Own: 1", "X-Request-Timeout-Seconds: 1", "x_session_id: s\r\nX-Session-Id:", "Upgrade: h2c",
		"Authorization: Bearer x\r\nX-Api-Key: y", "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Origin: http://x",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, fields string) {
		head := "POST /v1/completions HTTP/1.1\r\nHost: berth\r\n"
		if fields != "" {
			head += fields + "\r\n"
		}
		r, w := z.send(fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(modelM), modelM))
		if r == nil {
			return
		}
		s := z.judge(t, r, w)
		if s == nil {
			return
		}
		named := strings.ToLower(strings.Join(r.Header["Connection"], ","))
		for name, values := range r.Header {
			switch name {
			case "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Proxy-Authenticate", "Proxy-Authentication-Info",
				"Proxy-Authorization", "Proxy-Connection", "X-Reserved-Slot-Token", "X-Slot-Holder", "X-Slot-Secret", "X-Slot-Refused",
				"X-Num-Ongoing-Requests", "X-Slot-Instance", "X-Slot-Seq", "X-Slot-Own":
				if s.header[name] != nil {
					t.Fatalf("%s was forwarded", name)
				}
			case "Content-Length", "Expect", "X-Request-Id", "User-Agent":
			default:
				if !strings.Contains(named, strings.ToLower(name)) && !slices.Equal(s.header[name], values) {
					t.Fatalf("%s: %q came as %q", name, values, s.header[name])
				}
			}
		}
		if id := s.header.Get("X-Request-Id"); !telemetry.LoggableID(id) || w.Header().Get("X-Request-Id") != id {
			t.Fatalf("the request's id is %q, and %q for the client", id, w.Header().Get("X-Request-Id"))
		}
	})
}

func FuzzPath(f *testing.F) {
	z := newFuzzed(f)
	for _, seed := range []string{
		"/", "/v1/chat/completions", "/completions?a=b&&c", "/v1/%2e%2e/sleep", "/v1/..%2fsleep", "//sleep", "/v1/sleep", "/v1/models/m", "/tokenize",
		"/v1/responses/resp_1/cancel", "/responses/x/y", "/v1/messages/count_tokens", "http://x/v1/completions", "/v1/a%2Fb%00", "/v1/%ff", "*", "/v1/x;y?z",
		"/internal/slots", "/v1/v1/v1", "/v1/responses/resp_1", "/models/x%2Fy", "/v1/audio/speech",
	} {
		f.Add("POST", seed)
		f.Add("GET", seed)
	}
	f.Add("DELETE", "/v1/responses/x")
	f.Fuzz(func(t *testing.T, method, target string) {
		r, w := z.send(fmt.Sprintf("%s %s HTTP/1.1\r\nHost: berth\r\nContent-Length: %d\r\n\r\n%s", method, target, len(modelM), modelM))
		if r == nil || r.URL.Path == "/livez" || r.URL.Path == "/readyz" || r.URL.Path == "/health" || r.URL.Path == "/metrics" {
			return
		}
		if s := z.judge(t, r, w); s != nil && (s.uri != r.URL.Path && s.uri != "/v1"+r.URL.Path || r.Method != "POST" || s.body != modelM) {
			t.Fatalf("%s %q came as %q", r.Method, r.URL.Path, s.uri)
		}
	})
}

func FuzzBody(f *testing.F) {
	z := newFuzzed(f)
	for _, seed := range []string{
		"", modelM, `{"model":"m","messages":[{"role":"user","content":"a\"\u00e9\ud83d"}],"stream":true,"n":-1e400}`, `{"model":null}`, `{"model":1}`,
		`{"model":"x"}`, `[]`, `{"model":"m","previous_response_id":"resp_1"}`, "{\"model\":\"m\",\"prompt\":\"\xff\"}", `{"model":"m","prompt":[[1,2],"a",{}]}`,
		formOf("--B", `Content-Disposition: form-data; name="model"`, "", "m", "--B--"),
		`{"model":"m","system":[{"text":"x"}],"input":[{"role":"user","content":[{"type":"input_text","text":"x"}]}],"tools":[{}]}`,
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, body []byte, form bool) {
		contentType := "application/json"
		if form {
			contentType = formHeader
		}
		head := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: berth\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", contentType, len(body))
		r, w := z.send(head + string(body))
		if s := z.judge(t, r, w); s != nil && s.body != string(body) {
			scanned, err := openai.ScanBody(r.Header, body, nil)
			if edited := bytes.HasPrefix(scanned.ModelAt.Of(body), []byte("null")); err != nil || !edited {
				t.Fatalf("%q came as %q", body, s.body)
			}
		}
	})
}
