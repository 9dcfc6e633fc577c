package config

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write the golden files of testdata instead of comparing with them")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// someChecks knows two policies, which have no argument "wrong".
var someChecks = Checks{Router: func(class string, kwargs map[string]any) error {
	if class != "RoundRobinRouter" && class != "PowerOfTwoChoicesRouter" {
		return fmt.Errorf("there is no policy %s", class)
	}
	if _, ok := kwargs["wrong"]; ok {
		return fmt.Errorf("%s takes no argument wrong", class)
	}
	return nil
}, Selector: func(selector string) error {
	if selector == "bad" {
		return errors.New("it is bad")
	}
	return nil
}, ExtraPath: func(path string) error {
	if path == "/manages" {
		return fmt.Errorf("%s manages engines", path)
	}
	return nil
}}

func TestLoadGoodFiles(t *testing.T) {
	for _, path := range files(t, "*.good.yaml") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			c, warnings, err := Load(path, someChecks)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			for _, w := range warnings {
				fmt.Fprintf(&got, "# %s\n", w)
			}
			got.Write(c.YAML())
			compare(t, strings.TrimSuffix(path, ".yaml")+".golden", got.Bytes())
			checkRoundTrip(t, c)
		})
	}
}

func TestLoadBadFilesReportsAllProblems(t *testing.T) {
	for _, path := range files(t, "*.bad.yaml") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			c, _, err := Load(path, someChecks)
			if err == nil || c != nil {
				t.Fatalf("got %v, %v; want no config and an error", c, err)
			}
			compare(t, strings.TrimSuffix(path, ".yaml")+".problems", []byte(err.Error()+"\n"))
		})
	}
}

// commentedKey matches a line of the example with a key that is commented out.
var commentedKey = regexp.MustCompile(`(?m)^( *)# ((?: {2})*(?:- )?[a-z][a-z0-9_]*:(?: .*)?)$`)

// The example has exactly the keys of the schema, including those that are commented out.
func TestConfigExampleHasEveryKey(t *testing.T) {
	example, err := os.ReadFile("example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r := newReader(Checks{}, nil)
	root := r.parseDocument(commentedKey.ReplaceAll(example, []byte("$1$2")), "example.yaml")
	if len(r.problems) > 0 {
		t.Fatal(r.problems)
	}
	simulated := Model{Simulated: new(Simulated)}
	for path, table := range map[string]fields{
		"":                                 r.file(),
		"http":                             r.http(new(HTTP)),
		"http.tls":                         r.tlsConfig(new(TLS)),
		"http.cors":                        r.corsConfig(new(CORS)),
		"admin":                            r.admin(new(Admin)),
		"auth":                             r.authConfig(new(Auth)),
		"auth.keys":                        r.key(new(Key)),
		"decision_log":                     r.decisionLogConfig(new(DecisionLog)),
		"http_options":                     r.httpOptionsConfig(new(string), new(int)),
		"applications":                     r.applicationConfig(),
		"applications.args":                r.applicationArgs(),
		"llm_configs":                      r.modelConfig(&simulated),
		"llm_configs.model_loading_config": r.modelLoading(new(Model)),
		"llm_configs.deployment_config":    r.deployment(&simulated),
		"llm_configs.deployment_config.request_router_config": r.requestRouter(new(Router)),
		"llm_configs.timeouts":                                r.timeoutConfig(new(Model)),
		"llm_configs.replicas":                                r.replica(new(Replica)),
		"llm_configs.dns":                                     r.dnsConfig(new(DNS)),
		"llm_configs.kubernetes":                              r.kubernetesConfig(new(Kubernetes)),
		"llm_configs.simulated":                               r.simulated(new(Simulated)),
	} {
		keys := keysAt(root, path)
		for key := range table {
			if !keys[key] {
				t.Errorf("the example has no %s in %q", key, path)
			}
		}
		for key := range keys {
			if table[key] == nil {
				t.Errorf("the example has the unknown key %s in %q", key, path)
			}
		}
	}
}

// keysAt returns the keys of all mappings at a path, in all items of lists.
func keysAt(n *node, path string) map[string]bool {
	keys := make(map[string]bool)
	switch first, rest, _ := strings.Cut(path, "."); {
	case n == nil:
	case n.kind == sequence:
		for _, item := range n.nodes {
			maps.Copy(keys, keysAt(item, path))
		}
	case path != "":
		return keysAt(n.get(first), rest)
	case n.kind == mapping:
		for _, child := range n.nodes {
			keys[child.name] = true
		}
	}
	return keys
}

func TestConfigExampleHasTheDefaults(t *testing.T) {
	c, warnings, err := Load("example.yaml", someChecks)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	if c.HTTP != defaultHTTP() || c.Admin != defaultAdmin() || c.DecisionHeaders {
		t.Errorf("got %+v, %+v and %v", c.HTTP, c.Admin, c.DecisionHeaders)
	}
	for _, m := range c.Models {
		want := defaultModel()
		want.ID, want.ServedName, want.Aliases, want.Replicas = m.ID, m.ServedName, m.Aliases, m.Replicas
		if m.Simulated != nil {
			want.Simulated = defaultSimulated()
		}
		if !reflect.DeepEqual(m, want) {
			t.Errorf("got  %+v\nwant %+v", m, want)
		}
	}
}

func TestConfigDefaultIsThreeSimulatedReplicas(t *testing.T) {
	c := Default()
	if len(c.Models) != 1 || c.Models[0].ID != "demo" || c.Models[0].Simulated.Replicas != 3 {
		t.Errorf("got %+v", c)
	}
	checkRoundTrip(t, c)
	c.Models[0].ID = "changed"
	if Default().Models[0].ID != "demo" {
		t.Error("two calls of Default share a Config")
	}
}

// checkRoundTrip checks that the YAML of a config parses to an equal config.
func checkRoundTrip(t *testing.T, c *Config) {
	t.Helper()
	again, warnings, err := Parse(c.YAML(), "effective.yaml", Checks{})
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v %v in\n%s", err, warnings, c.YAML())
	}
	if !reflect.DeepEqual(again, c) {
		t.Fatalf("not equal after a round trip:\n%s\nthen\n%s", c.YAML(), again.YAML())
	}
}

func files(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	return slices.Sorted(slices.Values(paths))
}

func compare(t *testing.T, golden string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", golden, got, want)
	}
}
