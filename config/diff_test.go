package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// diffBase has a value for every field.
func diffBase() *Config {
	c := Default()
	c.HTTP.TLS = TLS{"cert.pem", "key.pem"}
	c.HTTP.CORS = &CORS{AllowedOrigins: []string{"*"}}
	c.Admin.KeyEnv = "ADMIN"
	c.Auth = Auth{KeysEnv: "KEYS", Keys: []Key{{Name: "team", Hash: [32]byte{1}, Models: []string{"m"}, MaxOngoingRequests: 3}}}
	c.ExtraPaths = []string{"/v1/x"}
	c.DecisionLog = DecisionLog{"decisions", "KEY"}
	c.AccessLog = "access"
	simulated := c.Models[0]
	simulated.ID, simulated.Simulated = "simulated", defaultSimulated()
	m := c.Models[0]
	m.ID, m.ServedName, m.Aliases, m.Simulated = "m", "served", []string{"alias"}, nil
	m.SlotAuthority, m.SlotSecretEnv = ReplicaCounts, "SECRET"
	m.Router = Router{"RoundRobinRouter", map[string]any{"a": 1}}
	m.Replicas = []Replica{{ID: "a", URL: "http://a:1", MaxOngoingRequests: 4, APIKeyEnv: "A"}, {ID: "b", URL: "http://b:1", MaxOngoingRequests: 4}}
	c.Models = []Model{m, simulated}
	return c
}

// leaves calls f with every settable field of v that has no fields of its own.
func leaves(v reflect.Value, path string, f func(path string, field reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			leaves(v.Elem(), path, f)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			leaves(v.Field(i), path+"."+v.Type().Field(i).Name, f)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Struct {
			f(path, v)
			return
		}
		for i := range v.Len() {
			leaves(v.Index(i), fmt.Sprint(path, i), f)
		}
	default:
		f(path, v)
	}
}

// change gives a field another value.
func change(t *testing.T, field reflect.Value) {
	switch field.Kind() {
	case reflect.String:
		field.SetString(field.String() + "x")
	case reflect.Bool:
		field.SetBool(!field.Bool())
	case reflect.Int, reflect.Int64:
		field.SetInt(field.Int() + int64(time.Second))
	case reflect.Float64:
		field.SetFloat(field.Float() + 1)
	case reflect.Slice:
		field.Set(reflect.ValueOf([]string{"changed"}))
	case reflect.Map:
		field.Set(reflect.ValueOf(map[string]any{"changed": true}))
	case reflect.Array:
		field.Index(0).SetUint(7)
	default:
		t.Fatalf("there is no other value of a %v", field.Type())
	}
}

// A change of any field is found, and a field that is added later is not forgotten.
func TestConfigDiffFindsAChangeOfEveryField(t *testing.T) {
	paths := 0
	leaves(reflect.ValueOf(diffBase()), "", func(path string, _ reflect.Value) {
		if path == ".Models0.HealthCheckPath" {
			return // without effect, as this model has agents
		}
		paths++
		next := diffBase()
		leaves(reflect.ValueOf(next), "", func(p string, field reflect.Value) {
			if p == path {
				change(t, field)
			}
		})
		for _, changes := range [][]string{Diff(diffBase(), next), Diff(next, diffBase())} {
			if len(changes) == 0 || strings.Contains(changes[0], "only the order") {
				t.Errorf("a change of %s is reported as %q", path, changes)
			}
		}
	})
	if paths < 60 {
		t.Errorf("only %d fields were found", paths)
	}
}

func TestConfigDiffNamesTheKeys(t *testing.T) {
	for name, c := range map[string]struct {
		change func(c *Config)
		want   []string
	}{
		"nothing": {func(*Config) {}, nil},
		"a limit": {func(c *Config) { c.HTTP.DrainTimeout = 30 * time.Second }, []string{"http.drain_timeout_s: 600 -> 30"}},
		"models": {func(c *Config) {
			c.Models[0].ID = "n"
		}, []string{"models added: n", "models removed: m"}},
		"replicas": {func(c *Config) {
			m := &c.Models[0]
			m.Replicas = []Replica{{ID: "b", URL: "http://b:2", MaxOngoingRequests: 4}, {ID: "c", URL: "http://c:1"}, {ID: "d", URL: "http://d:1"}}
		}, []string{"model m: replicas added: c, d", "model m: replicas removed: a", "model m: replicas changed: b"}},
		"the policy": {func(c *Config) {
			c.Models[0].Router = Router{"ConsistentHashRouter", map[string]any{"num_fallback_replicas": 3}}
			c.Models[0].MaxQueuedRequests = 7
		}, []string{"model m: deployment_config.max_queued_requests: 1024 -> 7",
			`model m: deployment_config.request_router_config.request_router_class: "RoundRobinRouter" -> "ConsistentHashRouter"`,
			`model m: deployment_config.request_router_config.request_router_kwargs: {"a":1} -> {"num_fallback_replicas":3}`}},
		"a timeout": {func(c *Config) { c.Models[1].IdleTimeout = time.Second }, []string{"model simulated: timeouts.idle_s: 300 -> 1"}},
		"keys": {func(c *Config) {
			c.Auth.Keys = []Key{{Name: "team", Hash: [32]byte{2}}, {Name: "new", Hash: [32]byte{3}}}
		}, []string{"auth.keys added: new", "auth.keys changed: team"}},
		"optional keys": {func(c *Config) {
			c.Admin.KeyEnv, c.HTTP.TLS, c.AccessLog = "", TLS{}, ""
		}, []string{`access_log: "access" -> false`, "http.tls.cert_file: removed", "http.tls.key_file: removed", "admin.api_key_env: removed"}},
		"the order": {func(c *Config) { slices.Reverse(c.Models) }, []string{"only the order of models, replicas or keys"}},
		"many": {func(c *Config) {
			for n := range 30 {
				c.Models[0].Replicas = append(c.Models[0].Replicas, Replica{ID: fmt.Sprint(n)})
			}
		}, []string{"model m: replicas added: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 20 more"}},
	} {
		t.Run(name, func(t *testing.T) {
			next := diffBase()
			c.change(next)
			if got := Diff(diffBase(), next); !slices.Equal(got, c.want) {
				t.Errorf("the changes are\n%q; want\n%q", got, c.want)
			}
		})
	}
	next := diffBase()
	next.HTTP.TLS, next.Admin.KeyEnv = TLS{}, ""
	if got := Diff(next, diffBase()); !slices.Contains(got, `admin.api_key_env: set to "ADMIN"`) {
		t.Errorf("the changes are %q", got)
	}
}

// No change of a key reveals its hash, which would allow guesses.
func TestConfigDiffShowsNoHash(t *testing.T) {
	next := diffBase()
	next.Auth.Keys[0].Hash = [32]byte{0xab, 0xcd}
	if got := strings.Join(Diff(diffBase(), next), "\n"); got != "auth.keys changed: team" {
		t.Errorf("the changes are %q", got)
	}
}
