package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// The engine is the llama.cpp server from a Python wheel, with a random model of a few megabytes.
func TestLlamaCppServerIsServed(t *testing.T) {
	t.Parallel()
	engine := llamaCpp(t)
	b := serve(t, loopbackConfig+"llm_configs:\n- model_loading_config: {model_id: demo}\n"+
		"  deployment_config: {max_ongoing_requests: 2, max_queued_requests: 0, health_check_period_s: 1}\n  replicas: [{url: \""+engine.url+"\"}]\n")
	client := newClient(t, false)

	// With a temperature of 0 all responses are equal.
	const body = `{"model":"demo","temperature":0,"ignore_eos":true,"max_tokens":40,"cache_prompt":false,"stream":%t,"messages":[{"role":"user","content":"Hello"}]}`
	endless := strings.Replace(endlessChatBody("demo"), "{", `{"ignore_eos":true,`, 1)
	want := responseText(t, chat(t.Context(), client, engine.url, fmt.Sprintf(body, false)))
	for _, stream := range []bool{false, true} {
		if got := responseText(t, chat(t.Context(), client, b.url, fmt.Sprintf(body, stream))); got != want || want == "" {
			t.Errorf("berth returned %q, the engine %q", got, want)
		}
	}
	if ready := b.getPage(t, b.url+"/readyz"); ready.status != http.StatusOK {
		t.Errorf("/readyz: %v", ready)
	}

	// Disconnects free the engine's two slots.
	for range 3 {
		var streams []*http.Response
		for range 2 {
			streams = append(streams, openStream(t, t.Context(), client, b.url, endless))
		}
		if busy := engine.busySlots(t); busy != 2 {
			t.Errorf("%d slots of the engine are busy, want 2", busy)
		}
		for _, resp := range streams {
			resp.Body.Close()
		}
		eventually(t, "the engine has no active request", func() bool { return engine.busySlots(t) == 0 })
		eventually(t, "berth's slots are released", func() bool { return b.sumMetric(t, "berth_slots") == 0 })
	}

	stream := openStream(t, t.Context(), client, b.url, endless)
	engine.kill()
	if got := readResponse(stream); got.err == nil || lastErrorCode(got.body) != "upstream_broken" {
		t.Errorf("a stream of a killed engine got %v", got)
	}
	eventually(t, "berth is unready", func() bool { return b.getPage(t, b.url+"/readyz").status == http.StatusServiceUnavailable })
}

// llamaServer is a llama.cpp server process.
type llamaServer struct {
	*command
	url string
}

// llamaCpp starts a llama.cpp server.
func llamaCpp(t *testing.T) *llamaServer {
	t.Helper()
	python := venvProgram(virtualenv(t, "llamacpp/requirements.txt"), "python")
	c := startCommand(t, "", python, "llamacpp/engine.py", filepath.Join(t.TempDir(), "random.gguf"))
	eventually(t, "the engine prints its address", func() bool {
		select {
		case <-c.done:
			t.Fatal("the engine exited before listening")
		default:
		}
		return c.stdout.contains("\n")
	})
	e := &llamaServer{c, strings.TrimSpace(c.stdout.String())}
	eventually(t, "the engine is healthy", func() bool { return (&berth{}).getPage(t, e.url+"/health").status == http.StatusOK })
	return e
}

// busySlots returns the number of busy slots.
func (e *llamaServer) busySlots(t *testing.T) (n int) {
	t.Helper()
	var slots []struct {
		Busy bool `json:"is_processing"`
	}
	page := (&berth{}).getPage(t, e.url+"/slots")
	if json.Unmarshal(page.body, &slots) != nil {
		t.Fatalf("/slots: %v", page)
	}
	for _, s := range slots {
		if s.Busy {
			n++
		}
	}
	return n
}

// responseText returns the text of a buffered or streamed response.
func responseText(t *testing.T, a response) (text string) {
	t.Helper()
	if !a.isComplete() {
		t.Fatalf("got %v", a)
	}
	for event := range bytes.SplitSeq(a.body, []byte("\n\n")) {
		var chunk struct {
			Choices []struct{ Delta, Message struct{ Content string } }
		}
		if json.Unmarshal(bytes.TrimPrefix(event, []byte("data: ")), &chunk) == nil {
			for _, c := range chunk.Choices {
				text += c.Delta.Content + c.Message.Content
			}
		}
	}
	return text
}
