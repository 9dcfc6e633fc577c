package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// In each matrix a client runs every script twice: directly with a scripted upstream, and through
// berth with another one. The outcomes and the requests received by the upstreams must be equal.

func TestPythonSDKCannotTellBerthFromItsUpstream(t *testing.T) {
	t.Parallel()
	python := venvProgram(virtualenv(t, "python/requirements.txt"), "python")
	testMatrix(t, "python", programClient(python, "python/matrix.py"))
}

func TestNodeSDKCannotTellBerthFromItsUpstream(t *testing.T) {
	t.Parallel()
	testMatrix(t, "node", nodeClient(t, "openai.mjs"))
}

func TestVercelSDKCannotTellBerthFromItsUpstream(t *testing.T) {
	t.Parallel()
	testMatrix(t, "vercel", nodeClient(t, "vercel.mjs"))
}

func TestLangChainCannotTellBerthFromItsUpstream(t *testing.T) {
	t.Parallel()
	testMatrix(t, "langchain", nodeClient(t, "langchain.mjs"))
}

// nodeClient returns a client that is a Node.js script.
func nodeClient(t *testing.T, name string) matrixClient {
	node, dir := nodeScripts(t)
	return programClient(node, filepath.Join(dir, name))
}

// result is the outcome of a script as reported by a client.
type result struct {
	Variant, Script string
	Outcome         json.RawMessage
}

func (r result) String() string { return r.Variant + "/" + r.Script }

// matrixClient starts running scripts with the server at a base URL. Texts are acknowledged at
// ackURL. The returned function waits for the results.
type matrixClient func(t *testing.T, base, ackURL string, acts []script) (wait func() []result)

// programClient returns a client that is a program with the given command line.
func programClient(args ...string) matrixClient {
	return func(t *testing.T, base, ackURL string, scripts []script) func() []result {
		c := startCommand(t, "", args[0], append(args[1:], base, ackURL, writeScripts(t, scripts))...)
		return func() (results []result) {
			if status := c.waitExit(t); status != 0 {
				t.Fatalf("%v exited with status %d", args, status)
			}
			lines := json.NewDecoder(strings.NewReader(c.stdout.String()))
			for lines.More() {
				var r result
				if err := lines.Decode(&r); err != nil {
					t.Fatal(err)
				}
				results = append(results, r)
			}
			return results
		}
	}
}

// writeScripts writes the scripts to a JSON file for a client program and returns the path.
func writeScripts(t *testing.T, scripts []script) string {
	var list []string
	for _, a := range scripts {
		more := ""
		if a.options != "" {
			more = "," + a.options
		}
		list = append(list, fmt.Sprintf(`{"name":%q,"operation":%q,"acknowledge":%t%s}`, a.name, a.operation, a.acknowledge, more))
	}
	file := filepath.Join(t.TempDir(), "scripts.json")
	if err := os.WriteFile(file, []byte("["+strings.Join(list, ",\n")+"]"), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// testMatrix runs all scripts with a client, directly and through berth, and compares the outcomes
// and the requests.
func testMatrix(t *testing.T, name string, client matrixClient) {
	scripts := slices.Concat(bufferedScripts(), framingScripts(), errorScripts(), retryScripts())
	direct, behind := startScriptedUpstream(t, scripts), startScriptedUpstream(t, scripts)
	b := serve(t, loopbackConfig+"llm_configs:\n- model_loading_config: {model_id: "+scriptedModel+"}\n  replicas: [{url: \""+behind.URL+"\"}]\n")
	wait := client(t, direct.URL+"/v1", direct.URL+"/ack", scripts)
	got := client(t, b.url+"/v1", behind.URL+"/ack", scripts)()
	want := wait()
	if len(got) != len(want) {
		t.Fatalf("%d results, want %d", len(got), len(want))
	}
	for i, w := range want {
		if g := got[i]; g.String() != w.String() || !equivalent(direct.scripts[w.Script], g.Outcome, w.Outcome) {
			t.Errorf("%v\nthrough berth %s\ndirectly      %s", w, tail(string(g.Outcome), 1500), tail(string(w.Outcome), 1500))
		}
	}
	checkSameRequests(t, behind.requests(), direct.requests())
	for _, s := range []*scriptedUpstream{direct, behind} {
		eventually(t, "the upstream has no active request", func() bool { return s.active.Load() == 0 })
	}
	checkRecorded(t, filepath.Join("testdata", "matrix", name+".txt"), want)
}

// checkRecorded compares the outcomes without berth with a recorded table, one line per result. The
// table documents the client's behavior and reveals scripts that fail by mistake. BERTH_UPDATE=1
// rewrites the tables.
func checkRecorded(t *testing.T, file string, results []result) {
	t.Helper()
	var lines strings.Builder
	for _, r := range results {
		var o struct {
			Text  string
			Error struct{ Class, Message string }
		}
		if err := json.Unmarshal(r.Outcome, &o); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&lines, "%s | %s | %s | %s\n", r.Variant, r.Script, cmp.Or(o.Error.Class, "ok"), strconv.Quote(o.Text[:min(len(o.Text), 24)]))
	}
	if os.Getenv("BERTH_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(lines.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	table, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(string(table), "\n")
	got := strings.Split(lines.String(), "\n")
	for i, line := range got {
		if i >= len(want) || line != want[i] {
			t.Errorf("%s:%d differs: the outcome without berth is\n%s", file, i+1, line)
		}
	}
	for i := len(got); i < len(want); i++ {
		t.Errorf("%s:%d has no result: the client did not run\n%s", file, i+1, want[i])
	}
}

// equivalent reports whether two outcomes of a script are equal. If the upstream aborts the stream,
// the error may differ, but there must be an error after the same text.
func equivalent(a script, got, want json.RawMessage) bool {
	if a.ending == endAbort {
		return textBeforeError(got) == textBeforeError(want)
	}
	return bytes.Equal(got, want)
}

// textBeforeError returns the text received before an error, or "no error".
func textBeforeError(outcome json.RawMessage) string {
	var o struct {
		Text  string
		Error json.RawMessage
	}
	if json.Unmarshal(outcome, &o) != nil || o.Error == nil {
		return "no error"
	}
	return o.Text
}

// checkSameRequests checks that the upstream behind berth received the same requests as the direct
// one, except for the added X-Request-Id.
func checkSameRequests(t *testing.T, got, want []receivedRequest) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d requests arrived, want %d", len(got), len(want))
		return
	}
	for i, w := range want {
		g := got[i]
		if g.script != w.script || g.line != w.line || g.body != w.body {
			t.Errorf("%s\n%s %s through berth\n%s %s directly", w.script, g.line, g.body, w.line, w.body)
		}
		for name := range w.header {
			if name != "Connection" && !slices.Equal(g.header[name], w.header[name]) {
				t.Errorf("%s: %s is %q through berth and %q directly", w.script, name, g.header[name], w.header[name])
			}
		}
		for name := range g.header {
			if _, sent := w.header[name]; !sent && name != "X-Request-Id" {
				t.Errorf("%s: %s: %q was added", w.script, name, g.header[name])
			}
		}
	}
}
