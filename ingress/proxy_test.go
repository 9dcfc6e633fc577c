package ingress

import (
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// seen is a request as an upstream received it.
type seen struct {
	uri, body string
	header    http.Header
	length    int64
}

// recording returns the URL of a replica that responds "ok", and a channel of its requests.
func recording(t *testing.T) (url string, requests <-chan seen) {
	ch := make(chan seen, 100)
	return upstream(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		ch <- seen{r.RequestURI, string(body), r.Header, r.ContentLength}
		ok(w, r)
	}), ch
}

func TestProxyEditsOnlyTheModelNameInABody(t *testing.T) {
	url, requests := recording(t)
	m := modelOn("public", url)
	m.ServedName, m.Aliases = `served "name"`, []string{"alias"}
	f := serve(t, m)
	const odd = ` { "a" : [1e400 , "\u00e9\/"] ,` + "\t" + `"model" : %s ,"messages":[{"model":"alias"}], "z":-0.0 } ` + "\r\n"
	for sent, got := range map[string]string{
		`"public"`:             `"served \"name\""`,
		`"alias"`:              `"served \"name\""`,
		`"\u0061lias"`:         `"served \"name\""`,
		`null`:                 `"served \"name\""`,
		`"public", "stream":1`: `"served \"name\"", "stream":1`,
	} {
		sent, got = strings.Replace(odd, "%s", sent, 1), strings.Replace(odd, "%s", got, 1)
		for _, client := range []*http.Client{f.h1, f.h2} {
			r := f.do(t.Context(), client, "POST", "/v1/completions?q=%41&&q=b", io.MultiReader(strings.NewReader(sent)))
			if r.body != "ok" {
				t.Fatalf("got %d %s", r.StatusCode, r.body)
			}
			if s := receive(t, requests); s.body != got || s.length != int64(len(got)) || s.uri != "/v1/completions?q=%41&&q=b" {
				t.Errorf("the replica got for %s\n%s\n(%d bytes to %s)", sent, s.body, s.length, s.uri)
			}
		}
	}
}

func TestProxyLeavesABodyForTheServedNameUnchanged(t *testing.T) {
	url, requests := recording(t)
	f := serve(t, modelOn("m", url))
	for _, body := range []string{`{}`, `{"model":"\u006d"}`, `{"model":"m","prompt":"` + strings.Repeat("é", 100<<10) + `"}`} {
		if r := f.post("/v1/completions", body); r.body != "ok" {
			t.Fatalf("got %d %s", r.StatusCode, r.body)
		}
		if s := receive(t, requests); s.body != body {
			t.Errorf("the replica got for %.100s\n%.100s", body, s.body)
		}
	}
}

func TestProxyPassesHeadersExceptHopByHop(t *testing.T) {
	url, requests := recording(t)
	f := serve(t, modelOn("m", url))
	body := chat("m")
	f.raw("POST /v1/completions HTTP/1.1\r\nHost: berth\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n" +
		"x-request-id: id\r\nAuthorization: Bearer mine\r\nOpenAI-Organization: o\r\nX-Many: 1\r\nX-Many: 2, 3\r\nX-Empty:\r\n" +
		"Accept-Encoding: br\r\nExpect: 100-continue\r\nConnection: close, X-Private\r\nX-Private: p\r\nKeep-Alive: 5\r\n" +
		"TE: trailers\r\nUpgrade: h9\r\nProxy-Authorization: Basic x\r\nX-Reserved-Slot-Token: forged\r\n\r\n" + body)
	want := http.Header{
		"X-Request-Id": {"id"}, "Authorization": {"Bearer mine"}, "Openai-Organization": {"o"}, "X-Many": {"1", "2, 3"}, "X-Empty": {""},
		"Accept-Encoding": {"br"}, "Content-Length": {strconv.Itoa(len(body))},
	}
	if s := receive(t, requests); !reflect.DeepEqual(s.header, want) || s.body != body {
		t.Errorf("got\n%v\nwant\n%v", s.header, want)
	}
	f.idle()
}

func TestProxySendsTheReplicasOwnKey(t *testing.T) {
	url, requests := recording(t)
	t.Setenv("BERTH_TEST_KEY", "theirs")
	m := modelOn("m", refusing(1), url)
	m.Replicas[1].APIKeyEnv = "BERTH_TEST_KEY"
	f := serve(t, m)
	f.post("/v1/completions", chat("m"), "Authorization", "Bearer mine")
	if s := receive(t, requests); !slices.Equal(s.header["Authorization"], []string{"Bearer theirs"}) {
		t.Errorf("the replica got %q", s.header["Authorization"])
	}
}

func TestProxyPassesResponsesUnchanged(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write([]byte(`{"usage":{}}`))
	z.Close()
	responses := map[string]struct {
		status int
		header http.Header
		body   string
	}{
		"ok":        {200, http.Header{"Content-Type": {"application/json"}, "X-Many": {"1", "2"}, "Set-Cookie": {"a", "b"}}, "{}"},
		"empty":     {200, http.Header{}, ""},
		"none":      {204, http.Header{"X-A": {"b"}}, ""},
		"moved":     {307, http.Header{"Location": {"http://elsewhere/"}}, "gone"},
		"bad":       {400, http.Header{"Content-Type": {"application/json; charset=utf-8"}}, `{"object":"error"}`},
		"forbidden": {401, http.Header{"Www-Authenticate": {"Bearer"}}, "no"},
		"busy":      {429, http.Header{"Retry-After": {"7"}}, "later"},
		"failed":    {500, http.Header{"Content-Type": {"text/html"}}, "<h1>It failed</h1>"},
		"away":      {503, http.Header{}, "down"},
		"packed":    {200, http.Header{"Content-Encoding": {"gzip"}, "Content-Type": {"application/json"}}, packed.String()},
		"large":     {200, http.Header{"Content-Type": {"audio/mpeg"}}, strings.Repeat("\x00\xff", 1<<20)},
	}
	calls := make(chan string, 100)
	f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		calls <- r.URL.RawQuery
		a := responses[r.URL.RawQuery]
		w.Header()["Content-Type"] = nil // net/http must not guess one
		maps.Copy(w.Header(), a.header)
		if a.status != 204 {
			w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
		}
		w.WriteHeader(a.status)
		io.WriteString(w, a.body)
	})))
	for name, want := range responses {
		for _, client := range []*http.Client{f.h1, f.h2} {
			r := f.do(t.Context(), client, "POST", "/v1/completions?"+name, strings.NewReader(chat("m")), "Accept-Encoding", "gzip")
			if r.err != nil || r.StatusCode != want.status || r.body != want.body {
				t.Errorf("%s: got %d %.100q %v", name, r.StatusCode, r.body, r.err)
			}
			if length := r.Header.Get("Content-Length"); want.status != 204 && length != strconv.Itoa(len(want.body)) {
				t.Errorf("%s has the Content-Length %q", name, length)
			}
			for _, own := range []string{"Content-Length", "Date", "X-Request-Id"} {
				r.Header.Del(own)
			}
			if !reflect.DeepEqual(r.Header, want.header) {
				t.Errorf("%s: got the header %v, want %v", name, r.Header, want.header)
			}
			if receive(t, calls); len(calls) > 0 {
				t.Errorf("%s was sent more than once", name)
			}
		}
	}
}

func TestProxyPassesTrailers(t *testing.T) {
	f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		ok(w, r)
		w.Header().Set("X-Sum", "1")
	})))
	for _, client := range []*http.Client{f.h1, f.h2} {
		if r := f.do(t.Context(), client, "POST", "/v1/completions", strings.NewReader(chat("m"))); r.Trailer.Get("X-Sum") != "1" {
			t.Errorf("the trailer is %v", r.Trailer)
		}
	}
}

// Each event reaches the client before the next one is written.
func TestProxyPassesEventsWithoutDelay(t *testing.T) {
	next := make(chan string, 1)
	f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for event := range next {
			if event == "" {
				return
			}
			io.WriteString(w, event)
			w.(http.Flusher).Flush()
		}
	})))
	for _, client := range []*http.Client{f.h1, f.h2} {
		next <- "data: 0\n\n"
		stream := f.stream(t.Context(), client)
		for i := range 3 {
			if event := stream.read(9); event != "data: "+strconv.Itoa(i)+"\n\n" {
				t.Fatalf("read %q", event)
			}
			next <- "data: " + strconv.Itoa(i+1) + "\n\n"
		}
		next <- ""
		if rest, err := io.ReadAll(stream); string(rest) != "data: 3\n\n" || err != nil {
			t.Errorf("the stream ended with %q and %v", rest, err)
		}
	}
}

func TestProxyServesRequestsWithoutRoutingTextAndWarnsOnce(t *testing.T) {
	f := serve(t, modelOn("m", upstream(t, ok)), modelOn("n", upstream(t, ok)))
	for _, body := range []string{`{"model":"m"}`, `{"model":"m","messages":null}`, `{"model":"m","documents":["x"]}`} {
		if r := f.post("/v1/rerank", body); r.body != "ok" {
			t.Errorf("%s got %d %s", body, r.StatusCode, r.body)
		}
	}
	f.chat("n")
	if n := f.metric(`berth_requests_without_routing_text_total{model="m"}`); n != 3 {
		t.Errorf("counted %v", n)
	}
	if _, ok := f.series(`berth_requests_without_routing_text_total{model="n"}`); ok {
		t.Error("a request with messages was counted")
	}
	if log := f.log.take(); strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, "model=m") {
		t.Errorf("logged:\n%s", log)
	}
}

func TestProxyNeedsNoModelNameForASingleModel(t *testing.T) {
	url, requests := recording(t)
	f := serve(t, modelOn("m", url))
	if r := f.post("/v1/chat/completions", `{"messages":[]}`); r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	receive(t, requests)
	f.mustApply(modelOn("m", url), modelOn("n", refusing(1)))
	wantError(t, f.post("/v1/chat/completions", `{"messages":[]}`), 400, "model_required", "model")
}
