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

// In each matrix a client plays every scene twice: with a scripted upstream itself, and with berth before another one like
// it. The client must not be able to tell the difference, nor may the upstream.

func TestPythonSDKCannotTellBerthFromItsUpstream(t *testing.T) {
	t.Parallel()
	python := inside(virtualenv(t, "python/requirements.txt"), "python")
	matrix(t, "python", program(python, "python/matrix.py"))
}

func TestNodeSDKCannotTellBerthFromItsUpstream(t *testing.T) {
	t.Parallel()
	matrix(t, "node", script(t, "openai.mjs"))
}

func TestVercelSDKCannotTellBerthFromItsUpstream(t *testing.T) {
	t.Parallel()
	matrix(t, "vercel", script(t, "vercel.mjs"))
}

func TestLangChainCannotTellBerthFromItsUpstream(t *testing.T) {
	t.Parallel()
	matrix(t, "langchain", script(t, "langchain.mjs"))
}

// script is a client in a script for Node.js.
func script(t *testing.T, name string) client {
	node, dir := nodeScripts(t)
	return program(node, filepath.Join(dir, name))
}

// result is what a client says came of a scene.
type result struct {
	Way, Scene string
	Outcome    json.RawMessage
}

func (r result) String() string { return r.Way + "/" + r.Scene }

// client begins to play scenes with the server at a base URL, and returns what waits for the results.
type client func(t *testing.T, base, heard string, acts []act) (wait func() []result)

// program is a client that is a program.
func program(args ...string) client {
	return func(t *testing.T, base, heard string, acts []act) func() []result {
		c := run(t, "", args[0], append(args[1:], base, heard, scenesFile(t, acts))...)
		return func() (results []result) {
			if status := c.status(t); status != 0 {
				t.Fatalf("%v ended with status %d", args, status)
			}
			lines := json.NewDecoder(strings.NewReader(c.out.String()))
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

// scenesFile writes down for a client what it is to do.
func scenesFile(t *testing.T, acts []act) string {
	var scenes []string
	for _, a := range acts {
		more := ""
		if a.opts != "" {
			more = "," + a.opts
		}
		scenes = append(scenes, fmt.Sprintf(`{"name":%q,"do":%q,"hearing":%t%s}`, a.name, a.do, a.hearing, more))
	}
	file := filepath.Join(t.TempDir(), "scenes.json")
	if err := os.WriteFile(file, []byte("["+strings.Join(scenes, ",\n")+"]"), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// matrix has a client play all scenes both ways.
func matrix(t *testing.T, name string, perform client) {
	acts := slices.Concat(answers(), framings(), errorAnswers(), retries())
	direct, behind := play(t, acts), play(t, acts)
	b := serve(t, anywhere+"llm_configs:\n- model_loading_config: {model_id: "+scriptedModel+"}\n  replicas: [{url: \""+behind.URL+"\"}]\n")
	wait := perform(t, direct.URL+"/v1", direct.URL+"/heard", acts)
	got := perform(t, b.url+"/v1", behind.URL+"/heard", acts)()
	want := wait()
	if len(got) != len(want) {
		t.Fatalf("%d results, want %d", len(got), len(want))
	}
	for i, w := range want {
		if g := got[i]; g.String() != w.String() || !alike(direct.scenes[w.Scene], g.Outcome, w.Outcome) {
			t.Errorf("%v\nthrough berth %s\ndirectly      %s", w, tail(string(g.Outcome), 1500), tail(string(w.Outcome), 1500))
		}
	}
	sameRequests(t, behind.requests(), direct.requests())
	for _, s := range []*scripted{direct, behind} {
		eventually(t, "the upstream works for nobody", func() bool { return s.open.Load() == 0 })
	}
	recorded(t, filepath.Join("testdata", "matrix", name+".txt"), want)
}

// recorded compares what came of the scenes without berth with a table of it, a line each, so that nobody wonders what a
// client makes of a framing, and that no scene is a failure by mistake. BERTH_UPDATE=1 writes the tables anew.
func recorded(t *testing.T, file string, results []result) {
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
		fmt.Fprintf(&lines, "%s | %s | %s | %s\n", r.Way, r.Scene, cmp.Or(o.Error.Class, "ok"), strconv.Quote(o.Text[:min(len(o.Text), 24)]))
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
			t.Errorf("%s:%d differs: the client itself says\n%s", file, i+1, line)
		}
	}
	for i := len(got); i < len(want); i++ {
		t.Errorf("%s:%d is missing: the client has not played\n%s", file, i+1, want[i])
	}
}

// alike compares two outcomes of a scene. If the upstream breaks off, the client learns of it from berth in other words, yet
// it does learn of it, and has the same text by then.
func alike(a act, got, want json.RawMessage) bool {
	if a.ends == breaksOff {
		return heardUntilError(got) == heardUntilError(want)
	}
	return bytes.Equal(got, want)
}

func heardUntilError(outcome json.RawMessage) string {
	var o struct {
		Text  string
		Error json.RawMessage
	}
	if json.Unmarshal(outcome, &o) != nil || o.Error == nil {
		return "no error"
	}
	return o.Text
}

// sameRequests sees that an upstream behind berth gets what one gets without it.
func sameRequests(t *testing.T, got, want []arrivedRequest) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d requests arrived, want %d", len(got), len(want))
		return
	}
	for i, w := range want {
		g := got[i]
		if g.scene != w.scene || g.line != w.line || g.body != w.body {
			t.Errorf("%s\n%s %s came through berth\n%s %s directly", w.scene, g.line, g.body, w.line, w.body)
		}
		for name := range w.header {
			if name != "Connection" && !slices.Equal(g.header[name], w.header[name]) {
				t.Errorf("%s: %s is %q through berth and %q directly", w.scene, name, g.header[name], w.header[name])
			}
		}
		for name := range g.header {
			if _, sent := w.header[name]; !sent && name != "X-Request-Id" {
				t.Errorf("%s: %s: %q was added", w.scene, name, g.header[name])
			}
		}
	}
}
