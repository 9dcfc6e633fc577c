package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// runReplay runs the command on a small trace.
func runReplay(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	var trace strings.Builder
	for i := range 60 {
		fmt.Fprintf(&trace, `{"timestamp": %d, "input_length": 1500, "output_length": 9, "hash_ids": [0, %d, %d]}`+"\n", 500*i, i%7, 100+i)
	}
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(path, []byte(trace.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := replayCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var b bytes.Buffer
	cmd.SetOut(&b)
	cmd.SetArgs(append([]string{"--trace", path}, args...))
	err = cmd.ExecuteContext(t.Context())
	return b.String(), err
}

func TestReplayPrintsFiguresAsJSON(t *testing.T) {
	out, err := runReplay(t, "--policy", "RoundRobinRouter,chwbl", "--replicas", "3", "--format", "json",
		"--add", "6s", "--remove", "b@900ms", "--restart", "c@1s,a@2s")
	if err != nil {
		t.Fatal(err)
	}
	var results []map[string]any
	if err := json.Unmarshal([]byte(out), &results); err != nil || len(results) != 2 || results[1]["policy"] != "chwbl" {
		t.Fatalf("%v\n%s", err, out)
	}
	want := strings.Fields("ceiling cv hit_rate max_over_mean policy refused requests sessions_moved ttft_mean_ms ttft_p50_ms ttft_p90_ms ttft_p99_ms wait_max_ms")
	if got := slices.Sorted(maps.Keys(results[0])); !slices.Equal(got, want) {
		t.Errorf("the fields are %q; want %q", got, want)
	}
	if results[0]["requests"] != 60.0 {
		t.Errorf("%v of 60 requests were served", results[0]["requests"])
	}
}

func TestReplayIsDeterministic(t *testing.T) {
	var outs [2]string
	for i := range outs {
		plot := filepath.Join(t.TempDir(), "plot.svg")
		out, err := runReplay(t, "--policy", "all", "--seeds", "3", "--plot", plot)
		svg, err2 := os.ReadFile(plot)
		if err != nil || err2 != nil || !bytes.Contains(svg, []byte("</svg>")) {
			t.Fatal(err, err2)
		}
		outs[i] = out + string(svg)
	}
	if outs[0] != outs[1] {
		t.Error("two runs print different results")
	}
}

func TestReplayRejectsInvalidFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--policy nobody":          `no policy "nobody"`,
		"--replicas 0":             "--replicas must be",
		"--speed 0":                "--speed must be",
		"--seeds 2":                "--seeds must be",
		"--format xml":             "--format must be",
		"--remove b":               "--remove must be of the form b@900s",
		"--restart z@1s":           `no replica "z" to restart`,
		"--model other":            `no model "other"`,
		"--policy-block 0":         "--policy-block must be",
		"--text-block-bytes 1":     "--text-block-bytes must be",
		"--trace /nowhere":         "no such file",
		"--max-ongoing-requests 0": "--max-ongoing-requests must be",
	} {
		if _, err := runReplay(t, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}
