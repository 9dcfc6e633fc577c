package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth/llmserver/simulated"
)

// The engine is vLLM's own server on CPU, with a random model of a few hundred kilobytes. To install
// and start it takes minutes, 6 GB of disk and 2 GB of memory, so the test runs only on demand. Each scene has a berth of its own, with a simulated engine as the sibling of vLLM.
func TestVLLMIsServed(t *testing.T) {
	if os.Getenv("BERTH_E2E_VLLM") != "1" {
		t.Skip("BERTH_E2E_VLLM=1 runs this test")
	}
	home := vllmEnvironment(t)
	v := startVLLM(t, home, "--served-model-name", "tiny", "--max-num-seqs", "2", "--max-num-queued-reqs", "1")
	v.waitReady(t)
	s, err := simulated.Listen("127.0.0.1:0", simulated.Config{ID: "sibling", Model: "tiny"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	t.Run("wrong model name", func(t *testing.T) { testVLLMModelName(t, v) })
	t.Run("queue full", func(t *testing.T) { testVLLMQueueFull(t, v, s.URL()) })
	t.Run("engine process killed", func(t *testing.T) { testVLLMEngineKilled(t, v, s.URL()) })
}

// vllmEnvironment returns a virtual environment with vLLM for CPU. vLLM looks for its platform in
// the version of the package vllm, which the package for CPU does not provide.
func vllmEnvironment(t *testing.T) (home string) {
	t.Helper()
	var pins []byte
	for _, file := range []string{"vllm/requirements.txt", "vllm/overrides.txt"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pins = append(pins, text...)
	}
	return cachedDir(t, "vllm", pins, func(staging string) error {
		python := venvProgram(staging, "python")
		if err := runCommands("",
			[]string{"python3", "-m", "venv", staging},
			[]string{python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", installer},
			[]string{venvProgram(staging, "uv"), "pip", "install", "--quiet", "--python", python,
				"--requirements", "vllm/requirements.txt", "--override", "vllm/overrides.txt"},
		); err != nil {
			return err
		}
		packages, err := filepath.Glob(filepath.Join(staging, "lib", "python*", "site-packages"))
		if err != nil || len(packages) != 1 {
			return fmt.Errorf("directories of packages %v, error %w", packages, err)
		}
		info := filepath.Join(packages[0], "vllm-0.32.0+cpu.dist-info")
		if err := os.Mkdir(info, 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(info, "METADATA"), []byte("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"), 0o644)
	})
}

// A vllmServer is a process of vLLM's API server, which has the engine in a child process.
type vllmServer struct {
	*command
	url string
}

// startVLLM starts a server with further flags. It is not ready yet.
func startVLLM(t *testing.T, home string, flags ...string) *vllmServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().(*net.TCPAddr)
	l.Close()
	args := append([]string{"vllm/engine.py", t.TempDir(), "--port", strconv.Itoa(address.Port)}, flags...)
	return &vllmServer{startCommand(t, "", venvProgram(home, "python"), args...), "http://" + address.String()}
}

// waitReady waits until the server is healthy, for ten minutes.
func (v *vllmServer) waitReady(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Minute); (&berth{}).getPage(t, v.url+"/health").status != http.StatusOK; {
		select {
		case <-v.done:
			t.Fatal("vLLM ended")
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("vLLM is not ready after ten minutes")
		}
	}
}

// killEngineCore kills the process that has the engine.
func (v *vllmServer) killEngineCore(t *testing.T) {
	t.Helper()
	pid := strconv.Itoa(v.Process.Pid)
	children, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, child := range strings.Fields(string(children)) {
		if name, err := os.ReadFile("/proc/" + child + "/cmdline"); err != nil || !bytes.Contains(name, []byte("EngineCore")) {
			continue
		}
		n, err := strconv.Atoi(child)
		if err == nil {
			err = syscall.Kill(n, syscall.SIGKILL)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no EngineCore among the children %s", children)
}

// vllmChat returns a body of a request for n tokens.
func vllmChat(n int, stream bool) string {
	return fmt.Sprintf(`{"model":"tiny","stream":%t,"max_tokens":%d,"ignore_eos":true,"messages":[{"role":"user","content":"Hi"}]}`, stream, n)
}

// serveVLLM starts berth with vLLM as the replica vllm, and a sibling unless empty.
func serveVLLM(t *testing.T, v *vllmServer, servedName, sibling string) *berth {
	replicas := `{id: vllm, url: "` + v.url + `"}`
	if sibling != "" {
		replicas += `, {id: sibling, url: "` + sibling + `"}`
	}
	return serve(t, loopbackConfig+"decision_headers: true\nllm_configs:\n- model_loading_config: {model_id: tiny}\n  served_model_name: "+servedName+
		"\n  deployment_config: {health_check_period_s: 1}\n  replicas: ["+replicas+"]\n")
}

// A wrong served_model_name is in the log before the first request, and a right one is not.
func testVLLMModelName(t *testing.T, v *vllmServer) {
	client := newClient(t, false)
	b := serveVLLM(t, v, "nope", "")
	eventually(t, "the name is reported", func() bool {
		return b.stderr.contains("does not list the model") && b.stderr.contains("served_model_name=nope listed=[tiny]")
	})
	if r := chat(t.Context(), client, b.url, vllmChat(3, false)); r.status != http.StatusNotFound {
		t.Errorf("got %v", r)
	}
	b = serveVLLM(t, v, "tiny", "")
	for _, stream := range []bool{false, true} {
		if r := chat(t.Context(), client, b.url, vllmChat(3, stream)); !r.isComplete() {
			t.Errorf("stream %t: got %v", stream, r)
		}
	}
	if b.stderr.contains("does not list the model") {
		t.Error("a listed name was reported")
	}
}

// A full queue of vLLM is a refusal, which no client gets while the sibling is free.
func testVLLMQueueFull(t *testing.T, v *vllmServer, sibling string) {
	client := newClient(t, false)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var refusal response
	for range 4 { // two run, one is queued
		resp, err := postChat(ctx, client, v.url, vllmChat(3000, true))
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode == http.StatusOK {
			t.Cleanup(func() { resp.Body.Close() })
			continue
		}
		refusal = readResponse(resp)
	}
	t.Logf("vLLM refuses with %v", refusal)
	b := serveVLLM(t, v, "tiny", sibling)
	for range 6 {
		if r := chat(t.Context(), client, b.url, vllmChat(3, false)); !r.isComplete() || r.header.Get("X-Berth-Replica") != "sibling" {
			t.Errorf("got %v with header %v", r, r.header)
		}
	}
	if n := b.sumMetric(t, "berth_retries_total", `reason="engine_busy"`); n == 0 {
		t.Error("no retry was counted")
	}
}

// The engine process is killed while vLLM has a stream. The stream must not look complete unless it says that it was aborted or failed, the other request must be complete or failed, and
// the sibling serves all that follow.
func testVLLMEngineKilled(t *testing.T, v *vllmServer, sibling string) {
	client := newClient(t, false)
	b := serveVLLM(t, v, "tiny", sibling)
	ctx, stop := context.WithTimeout(t.Context(), 90*time.Second)
	defer stop()
	var streams []*http.Response
	for range 2 {
		streams = append(streams, openStream(t, ctx, client, b.url, vllmChat(3000, true)))
	}
	var wg sync.WaitGroup
	unstreamed := make([]response, 2)
	for i := range unstreamed {
		wg.Go(func() { unstreamed[i] = chat(ctx, client, b.url, vllmChat(2000, false)) })
	}
	eventually(t, "all are running", func() bool { return b.sumMetric(t, "berth_slots", `state="running"`) == 4 })
	time.Sleep(2 * time.Second) // for some tokens
	at := time.Now()
	v.killEngineCore(t)
	for _, resp := range streams {
		if replica := resp.Header.Get("X-Berth-Replica"); replica == "vllm" {
			r := readResponse(resp)
			t.Logf("after %v the stream of vLLM ends: error %v, %s", time.Since(at).Round(time.Millisecond), r.err, tail(string(r.body), 300))
			if r.isComplete() && !bytes.Contains(r.body, []byte(`"finish_reason":"abort"`)) && !bytes.Contains(r.body, []byte(`data: {"error"`)) {
				t.Error("a stream that was cut looks complete")
			}
			continue
		}
		resp.Body.Close()
	}
	wg.Wait()
	for _, r := range unstreamed {
		t.Logf("not streamed, from %s: %v", r.header.Get("X-Berth-Replica"), r)
		if r.isComplete() && bytes.Contains(r.body, []byte(`"abort"`)) {
			t.Error("a client got an aborted response although the sibling was free")
		}
	}
	eventually(t, "vLLM is down", func() bool { return b.sumMetric(t, "berth_replica_up", `replica="vllm"`) == 0 })
	for range 4 {
		if r := chat(ctx, client, b.url, vllmChat(3, false)); !r.isComplete() {
			t.Errorf("afterwards: got %v", r)
		}
	}
	t.Logf("log:\n%s", &b.stderr)
}
