package ingress

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"testing"

	"berth/config"
)

func (f *front) apply(models ...config.Model) error {
	f.t.Helper()
	return f.Apply(configured(models...))
}

func (f *front) mustApply(models ...config.Model) {
	f.t.Helper()
	if err := f.apply(models...); err != nil {
		f.t.Fatal(err)
	}
}

func TestModelsListInConfigurationOrder(t *testing.T) {
	first, second := modelOn("org/z", refusing(1)), modelOn("a", refusing(2))
	first.Aliases = []string{"y", "b"}
	f := serve(t, first, second)
	created := make(map[string]int64)
	list := func() (ids []string) {
		r := f.get("/v1/models")
		var l struct {
			Object string
			Data   []struct {
				ID, Object string
				Created    int64
				OwnedBy    string `json:"owned_by"`
			}
		}
		if err := json.Unmarshal([]byte(r.body), &l); err != nil || l.Object != "list" {
			t.Fatalf("%v in %s", err, r.body)
		}
		for _, m := range l.Data {
			ids = append(ids, m.ID)
			if m.Object != "model" || m.Created == 0 || m.OwnedBy == "" {
				t.Errorf("%+v is incomplete", m)
			}
			if before, ok := created[m.ID]; ok && before != m.Created {
				t.Errorf("%s was created at %d, after a reload at %d", m.ID, before, m.Created)
			}
			created[m.ID] = m.Created
		}
		return ids
	}
	want := []string{"org/z", "y", "b", "a"}
	if got := list(); !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	// Created is in whole seconds: an older one shows that a reload keeps it.
	for _, m := range f.registry.table.Load().models {
		m.created -= 1000
	}
	for id := range created {
		created[id] -= 1000
	}
	first.MaxAttempts = 1
	f.mustApply(first, second)
	if got := list(); !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	if bare, versioned := f.get("/models"), f.get("/v1/models"); bare.body != versioned.body {
		t.Errorf("without the version the list is %s", bare.body)
	}
}

func TestModelsFindByIDAndAlias(t *testing.T) {
	m := modelOn("org/model/v1.5", refusing(1))
	m.Aliases = []string{"short"}
	f := serve(t, m)
	for _, base := range []string{"/v1/models/", "/models/"} {
		for path, id := range map[string]string{
			"org/model/v1.5":     "org/model/v1.5",
			"org%2Fmodel%2Fv1.5": "org/model/v1.5",
			"org%2fmodel/v1.5":   "org/model/v1.5",
			"short":              "short",
		} {
			r := f.get(base + path)
			var got struct{ ID, Object string }
			if err := json.Unmarshal([]byte(r.body), &got); err != nil || got.ID != id || got.Object != "model" {
				t.Errorf("GET %s%s: %d %s", base, path, r.StatusCode, r.body)
			}
		}
	}
	wantError(t, f.get("/v1/models/org"), 404, "model_not_found", "model")
}

func TestRoutesServeHEADLikeGET(t *testing.T) {
	f := serve(t, modelOn("m", upstream(t, ok)))
	for _, path := range []string{"/livez", "/readyz", "/health", "/v1/models", "/models/m", "/v1/models/x", "/nothing"} {
		get := f.get(path)
		for _, client := range []*http.Client{f.h1, f.h2} {
			head := f.do(t.Context(), client, "HEAD", path, nil)
			if head.err != nil || head.StatusCode != get.StatusCode || head.body != "" || head.Header.Get("Content-Type") != get.Header.Get("Content-Type") {
				t.Errorf("HEAD %s: %d %v, GET: %d %v", path, head.StatusCode, head.Header, get.StatusCode, get.Header)
			}
		}
	}
}

func TestReadinessFollowsAvailableReplicas(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)))
	if r := f.get("/readyz"); r.StatusCode != 200 {
		t.Errorf("before the first probe: %d %s", r.StatusCode, r.body)
	}
	f.chat("m")
	for _, path := range []string{"/readyz", "/health"} {
		if r := f.get(path); r.StatusCode != 503 {
			t.Errorf("%s with all replicas down: %d %s", path, r.StatusCode, r.body)
		}
	}
	if r := f.get("/livez"); r.StatusCode != 200 {
		t.Errorf("/livez: %d", r.StatusCode)
	}
	f.mustApply(modelOn("m", refusing(1)), modelOn("n", upstream(t, ok)))
	if r := f.get("/readyz"); r.StatusCode != 200 {
		t.Errorf("with a replica of another model: %d %s", r.StatusCode, r.body)
	}
}

func TestRoutesServeHTTP10(t *testing.T) {
	f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte("data: 1\n\n"))
		w.(http.Flusher).Flush()
		w.Write([]byte("data: 2\n\n"))
	})))
	body := chat("m")
	_, answer := f.raw("POST /v1/completions HTTP/1.0\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	if r := readReply(t, answer, "POST"); r.body != "data: 1\n\ndata: 2\n\n" || r.err != nil {
		t.Errorf("got %d %q %v", r.StatusCode, r.body, r.err)
	}
}

// A replica's URL may end in /v1, like a client's base URL.
func TestRoutesReplicaURLMayHaveVersion(t *testing.T) {
	url := upstream(t, func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(r.RequestURI)) })
	for _, given := range []string{url, url + "/", url + "/v1", url + "/v1/"} {
		c, _, err := config.Parse([]byte("http: {address: 127.0.0.1:0}\nadmin: {address: 127.0.0.1:0}\nllm_configs:\n"+
			"- model_loading_config: {model_id: m}\n  replicas: [{url: \""+given+"\"}]\n"), "a file", config.Checks{})
		if err != nil {
			t.Fatal(err)
		}
		f := serveConfig(t, c)
		for _, path := range []string{"/v1/completions", "/completions"} {
			if r := f.post(path, chat("m")); r.body != "/v1/completions" {
				t.Errorf("%s on %s: %d %s", path, given, r.StatusCode, r.body)
			}
		}
		if r := f.post("/tokenize", chat("m")); r.body != "/tokenize" {
			t.Errorf("/tokenize on %s: %d %s", given, r.StatusCode, r.body)
		}
	}
}
