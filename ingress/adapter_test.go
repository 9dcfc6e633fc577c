package ingress

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"berth/config"
)

func TestAdapterReachesBaseModel(t *testing.T) {
	url, requests := recording(t)
	base, longer := modelOn("qwen3", url), modelOn("qwen3:4b", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "longer "+r.Header.Get("X-Model"))
	}))
	base.ServedName, base.Aliases = "Qwen/Qwen3", []string{"small"}
	f := serve(t, base, longer)
	for model, got := range map[string]string{
		"qwen3":        "Qwen/Qwen3", // no adapter, no change
		"qwen3:sql":    "sql",
		"small:sql":    "sql",
		"qwen3:sql:v2": "sql:v2", // an adapter may have colons
		"qwen3:4bit":   "4bit",   // which begins like a model, and is none
		"qwen3:4b":     "longer", // a model by its exact name, and no adapter
		"qwen3:4b:sql": "longer", // the longest base there is
		`qwen3:a\"b`:   `a\"b`,   // a name is quoted anew
	} {
		r := f.post("/v1/completions", `{"model": "`+model+`", "prompt": [1e3]}`)
		if got == "longer" {
			if !strings.HasPrefix(r.body, "longer") {
				t.Errorf("%s got %d %s", model, r.StatusCode, r.body)
			}
			continue
		}
		if r.body != "ok" {
			t.Fatalf("%s got %d %s", model, r.StatusCode, r.body)
		}
		if s, want := receive(t, requests), `{"model": "`+got+`", "prompt": [1e3]}`; s.body != want || s.length != int64(len(want)) {
			t.Errorf("of %s came %s, want %s", model, s.body, want)
		}
	}
	for _, unknown := range []string{"sql", "other:sql", "qwen3:", ":sql", "qwen:sql", "qwen3x:sql", strings.Repeat(":", 1<<18)} {
		wantError(t, f.post("/v1/completions", `{"model":"`+unknown+`"}`), 404, "model_not_found", "model")
	}
}

func TestAdapterUnknownPassesEngineResponse(t *testing.T) {
	const answer = `{"object":"error","message":"The model ` + "`x`" + ` does not exist.","type":"NotFoundError","code":404}`
	f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(404)
		io.WriteString(w, answer)
	})))
	if r := f.chat("m:x"); r.StatusCode != 404 || r.body != answer {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	if n := f.metric(`berth_requests_total{model="m",route="/chat/completions",status="404"}`); n != 1 {
		t.Errorf("%v requests are counted for the base model", n)
	}
	if scrape := f.get("/metrics").body; strings.Contains(scrape, "m:x") || strings.Contains(scrape, `"x"`) {
		t.Error("the name of an adapter is in the metrics")
	}
}

func TestAdapterIsListedAsModel(t *testing.T) {
	f := serve(t, modelOn("org/m", refusing(1)))
	for path, id := range map[string]string{"/v1/models/org/m:sql": "org/m:sql", "/models/org%2Fm:a%2Fb": "org/m:a/b"} {
		r := f.get(path)
		var got struct{ ID, Object string }
		if err := json.Unmarshal([]byte(r.body), &got); err != nil || got.ID != id || got.Object != "model" {
			t.Errorf("GET %s: %d %s", path, r.StatusCode, r.body)
		}
	}
	for _, path := range []string{"/v1/models/org/m:", "/v1/models/m:sql"} {
		wantError(t, f.get(path), 404, "model_not_found", "model")
	}
}

// A session with an adapter stays on its replica and differs from that with the base model.
func TestAdapterSeparatesSessions(t *testing.T) {
	for _, class := range []string{"ConsistentHashRouter", "PrefixCacheAffinityRouter"} {
		t.Run(class, func(t *testing.T) {
			var urls []string
			for _, id := range strings.Split("abcdefgh", "") {
				urls = append(urls, upstream(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, id) }))
			}
			m := modelOn("m", urls...)
			m.Router.Class = class
			c := configured(m)
			c.Session = config.Default().Session
			f := serveConfig(t, c)
			body := `"messages":[{"role":"user","content":"` + strings.Repeat("the same text ", 100) + `"}]}`
			places := make(map[string]bool)
			for _, model := range []string{"m", "m:a", "m:b", "m:c", "m:d", "m:e"} {
				ask := func() string {
					return f.post("/v1/chat/completions", `{"model":"`+model+`",`+body, "X-Session-Id", "s").body
				}
				first := ask()
				places[first] = true
				for range 3 {
					f.idle()
					if again := ask(); again != first {
						t.Errorf("%s went to %s, and then to %s", model, first, again)
					}
				}
			}
			if len(places) == 1 {
				t.Error("all went to one replica, as if they shared a cache")
			}
		})
	}
}
