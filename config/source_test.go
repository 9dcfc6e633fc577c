package config

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseReplicas(t *testing.T) {
	for text, want := range map[string][]Replica{
		"[]":                       nil,
		`- {url: "http://a:1/v1"}`: {{ID: "a:1", URL: "http://a:1"}},
		"# a comment\n- url: http://a\n  id: x\n  max_ongoing_requests: 8\n  api_key_env: KEY\n- url: http://b\n": {
			{ID: "x", URL: "http://a", MaxOngoingRequests: 8, APIKeyEnv: "KEY"}, {ID: "b:80", URL: "http://b"},
		},
	} {
		if got, err := ParseReplicas([]byte(text), "f"); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %+v, %v; want %+v", text, got, err, want)
		}
	}
}

func TestParseReplicasReportsAllProblems(t *testing.T) {
	for text, want := range map[string]string{
		"":                   "f:1:1: this file is empty; list the replicas, or write [] for none",
		"replicas: []":       "f:1:1: replicas must be a list",
		"- [":                "f:1:",
		`- {urll: "http:a"}`: "f:1:3: replicas[0] has no url; set one like http://10.0.0.11:8000\nf:1:4: unknown key urll; did you mean url?",
		"- url: http://a\n- {url: http://A/, max_ongoing_requests: 0}": "f:2:9: duplicate replica http://a, first listed in line 1; remove one of them\n" +
			"f:2:42: max_ongoing_requests must be a whole number of at least 1, or null for no limit",
		"- {url: http://a, id: x}\n- {url: http://b, id: x}": "f:2:23: duplicate replica id x, first used in line 1; give each replica its own id",
		"- null": "f:1:3: replicas[0] has no value; set one or remove the key",
	} {
		got, err := ParseReplicas([]byte(text), "f")
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %+v, %v; want %s", text, got, err, want)
		}
	}
}
