package config

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const aModel = "llm_configs: [{model_loading_config: {model_id: m}, simulated: {}}]\n"

func TestParseBOMAndCRLF(t *testing.T) {
	text := "\ufeff" + strings.ReplaceAll("http:\n  address: \":1\"\n  body_timeout_s: 7\n"+aModel, "\n", "\r\n")
	c, _, err := Parse([]byte(text), "f", Checks{})
	if err != nil || c.HTTP.Address != ":1" || c.HTTP.BodyTimeout.Seconds() != 7 {
		t.Fatal(c, err)
	}
}

func TestParseCannotReferToFiles(t *testing.T) {
	_, _, err := Parse([]byte("llm_configs: [qwen.yaml]"), "f", Checks{})
	want := Problems{{"f", 1, 15, "the path of a model is relative to a configuration file, and there is none; write the model here"}}
	if !reflect.DeepEqual(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestLoadAbsolutePathOfModel(t *testing.T) {
	model := filepath.Join(t.TempDir(), "model.yaml")
	main := filepath.Join(t.TempDir(), "main.yaml")
	write(t, model, "{model_loading_config: {model_id: elsewhere}, simulated: {}}")
	write(t, main, "llm_configs: ["+model+"]")
	c, _, err := Load(main, Checks{})
	if err != nil || c.Models[0].ID != "elsewhere" {
		t.Fatal(c, err)
	}
}

func TestLoadUnreadableFile(t *testing.T) {
	_, _, err := Load("testdata/none.yaml", Checks{})
	want := "testdata/none.yaml: cannot read this file: no such file or directory"
	if _, ok := errors.AsType[Problems](err); !ok || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestParseReturnsWarningsWithProblems(t *testing.T) {
	_, warnings, err := Parse([]byte("proxy_location: x\nwrong: 1\n"+aModel), "f", Checks{})
	if err == nil || len(warnings) != 1 || warnings[0].Line != 1 {
		t.Errorf("got %v and %v", warnings, err)
	}
}

func TestParseSortsProblemsByPosition(t *testing.T) {
	text := "llm_configs:\n" +
		"  - {simulated: {}, deployment_config: {max_ongoing_requests: 1, max_ongoing_requests: 2}}\n" +
		"http: {b1: 1, a1: 1}\n"
	_, _, err := Parse([]byte(text), "f", Checks{})
	problems, _ := errors.AsType[Problems](err)
	positions := make([]string, len(problems))
	for i, p := range problems {
		positions[i], _, _ = strings.Cut(p.String(), ": ")
	}
	if want := []string{"f:2:5", "f:2:66", "f:3:8", "f:3:15"}; !slices.Equal(positions, want) {
		t.Errorf("got %v, want %v", positions, want)
	}
}

func TestParseRouterKwargs(t *testing.T) {
	text := `llm_configs:
  - model_loading_config: {model_id: m}
    simulated: {}
    deployment_config:
      request_router_config:
        request_router_class: a.b:Some.Router
        request_router_kwargs: {i: 1e3, f: 1.5, far: 1e16, s: x, yes: no, l: [true, null], m: {n: {}}, z: 010}
`
	got := make(map[string]any)
	var class string
	_, _, err := Parse([]byte(text), "f", Checks{Router: func(c string, kwargs map[string]any) error {
		class, got = c, kwargs
		return nil
	}})
	want := map[string]any{
		"i": 1000, "f": 1.5, "far": 1e16, "s": "x", "yes": "no", "z": 10,
		"l": []any{true, nil}, "m": map[string]any{"n": map[string]any{}},
	}
	if err != nil || class != "Router" || !reflect.DeepEqual(got, want) {
		t.Errorf("got %s %v, %v; want Router %v", class, got, err, want)
	}
}

func TestParseErrorsHideSecrets(t *testing.T) {
	for _, line := range []string{
		`{url: "http://a:1", api_key_env: s3cret-key}`,
		`{url: "http://user:s3cret@a:1"}`,
		`{url: "http://a:1?key=s3cret"}`,
		`{url: "http://a:%s3cret"}`,
	} {
		_, _, err := Parse([]byte("llm_configs: [{model_loading_config: {model_id: m}, replicas: ["+line+"]}]"), "f", Checks{})
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: got %v", line, err)
		}
	}
}

func TestConfigListenerConflicts(t *testing.T) {
	for _, c := range []struct {
		http, admin string
		want        bool
	}{
		{"127.0.0.1:8000", "127.0.0.1:8001", false},
		{"127.0.0.1:8000", "127.0.0.2:8000", false},
		{"127.0.0.1:8000", "127.0.0.1:8000", true},
		{":8000", "127.0.0.1:8000", true},
		{"127.0.0.1:8000", "[::]:8000", true},
		{"127.0.0.1:0", "127.0.0.1:0", false},
		{":8000", "", false},
	} {
		if got := addressesConflict(c.http, c.admin); got != c.want {
			t.Errorf("%q and %q: got %v", c.http, c.admin, got)
		}
	}
}

func TestConfigNormalizeURLIsIdempotent(t *testing.T) {
	for raw, want := range map[string]string{
		"http://a":                     "http://a",
		"HTTPS://A:443/":               "https://a",
		"http://a:443":                 "http://a:443",
		"http://a/v1/v1/":              "http://a",
		"http://a//v1//":               "http://a",
		"http://a/x%2Fy/v1":            "http://a/x%2Fy",
		"http://a/v10":                 "http://a/v10",
		"http://[fe80::1%25eth0]:80/x": "http://[fe80::1%25eth0]/x",
	} {
		got, err := normalizeURL(raw)
		again, err2 := normalizeURL(got)
		if err != nil || err2 != nil || got != want || again != want {
			t.Errorf("%s: got %q %v, then %q %v; want %q", raw, got, err, again, err2, want)
		}
	}
}

func TestConfigNearestKey(t *testing.T) {
	known := []string{"address", "max_body_bytes", "max_ongoing_requests", "replicas", "url"}
	for key, want := range map[string]string{
		"adress": "address", "addresss": "address", "URL": "url", "ulr": "", "replica": "replicas",
		"ongoing_requests": "max_ongoing_requests", "body": "max_body_bytes", "max": "", "": "", "engine": "",
	} {
		if got := nearest(key, known); got != want {
			t.Errorf("%q: got %q, want %q", key, got, want)
		}
	}
}

func TestConfigEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "ab", 2}, {"ab", "", 2}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"same", "same", 0}} {
		if got := editDistance(c.a, c.b); got != c.want {
			t.Errorf("%q to %q: got %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestConfigRestartKeysOfAddresses(t *testing.T) {
	running, next := Default(), Default()
	next.HTTP.DrainTimeout++
	next.DecisionLog.Path = "log"
	next.Models[0].ID = "other"
	if keys := RestartKeys(running, next); len(keys) != 0 {
		t.Errorf("got %v", keys)
	}
	next.HTTP.Address, next.Admin.Address = ":1", ""
	if keys := RestartKeys(running, next); !slices.Equal(keys, []string{"http.address", "admin.address"}) {
		t.Errorf("got %v", keys)
	}
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/*.yaml", "*.yaml"} {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, _, err := Parse(data, "fuzz.yaml", Checks{})
		if (c == nil) == (err == nil) {
			t.Fatal("want either a config or an error")
		}
		if err == nil {
			checkRoundTrip(t, c)
		}
	})
}

func FuzzYAMLRoundTripOfKwargs(f *testing.F) {
	f.Add("k", "v", 0.5)
	f.Add("<<", "a: b\n\t# c", 1e300)
	f.Add("", "\x00\x7f\u0085\u2028\ufeff'\"\\/ {}[]&*!|>%@`", -1e-9)
	f.Fuzz(func(t *testing.T, key, value string, number float64) {
		if !utf8.ValidString(key) || !utf8.ValidString(value) || math.IsNaN(number) || math.IsInf(number, 0) {
			t.Skip()
		}
		c := Default()
		c.Models[0].Router.Kwargs = map[string]any{key: value, key + "2": []any{value, map[string]any{value: key}}}
		if number != math.Trunc(number) {
			c.Models[0].Router.Kwargs["number"] = number
		}
		checkRoundTrip(t, c)
	})
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
