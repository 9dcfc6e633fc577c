package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"berth/llmserver/simulated"
)

func TestStreamsAreByteForByteWhatTheReplicaSends(t *testing.T) {
	const streams = 200
	fleet := startEngines(t, 2, simulated.Config{})
	b := serve(t, demoConfig("", fleet...))
	clients := []*http.Client{newClient(t, false), newClient(t, true)}
	bodies := make([]string, streams)
	for i := range bodies { // shorter than a cache block, so that usage is the same on all engines
		bodies[i] = chatBody("demo", fmt.Sprintf("Story %d", i), 16+i%48, i%8 != 0)
	}

	// All requests wait before the first byte until the last one has arrived.
	for _, e := range fleet {
		e.Engine().SetFaults(simulated.Faults{Hang: true})
	}
	answers := make([]response, streams)
	var running sync.WaitGroup
	for i := range answers {
		running.Go(func() { answers[i] = chat(t.Context(), clients[i%2], b.url, bodies[i]) })
	}
	eventually(t, "all streams are at the engines", func() bool {
		return fleet[0].Engine().Stats().InFlight+fleet[1].Engine().Stats().InFlight == streams
	})
	if running := b.sumMetric(t, "berth_slots", `state="running"`); running != streams {
		t.Errorf("%v slots are running, want %d", running, streams)
	}
	for _, e := range fleet {
		e.Engine().SetFaults(simulated.Faults{})
	}
	running.Wait()

	direct := make([]response, streams)
	for i := range direct {
		running.Go(func() { direct[i] = chat(t.Context(), clients[0], fleet[i%2].URL(), bodies[i]) })
	}
	running.Wait()
	for i, got := range answers {
		want := direct[i]
		if !want.isComplete() {
			t.Fatalf("the engine's own response: %v", want)
		}
		if got.err != nil || got.status != want.status || !bytes.Equal(got.body, want.body) {
			t.Fatalf("stream %d: got %v, want %v", i, got, want)
		}
		for _, key := range []string{"Content-Type", "Content-Length"} {
			if got.header.Get(key) != want.header.Get(key) {
				t.Errorf("stream %d: %s is %q, want %q", i, key, got.header.Get(key), want.header.Get(key))
			}
		}
	}
}

func TestStreamOfAReplicaThatDiesEndsInAnError(t *testing.T) {
	t.Parallel()
	for _, failure := range []string{"process", "abort", "reset"} {
		t.Run(failure, func(t *testing.T) {
			forBothProtocols(t, func(t *testing.T, client *http.Client) {
				engine := startEngines(t, 1, simulated.Config{})[0]
				if failure != "process" {
					engine.Engine().SetFaults(simulated.Faults{Cut: simulated.Cut(failure), CutAfter: 20})
				}
				b := serve(t, demoConfig("", engine))
				resp := openStream(t, t.Context(), client, b.url, endlessChatBody("demo"))
				if failure == "process" {
					engine.Close()
				}
				got := readResponse(resp)
				if got.err == nil {
					t.Errorf("the stream looks complete: %v", got)
				}
				if bytes.Contains(got.body, []byte("[DONE]")) {
					t.Error("berth sent [DONE] for a truncated stream")
				}
				if lastErrorCode(got.body) != "upstream_broken" {
					t.Errorf("the stream does not end with an error event: %v", got)
				}
				if b.sumMetric(t, "berth_upstream_errors_total", `phase="streaming"`) != 1 {
					t.Error("the upstream error was not counted")
				}
			})
		})
	}
}

// lastErrorCode returns the code of the error in the last event of a stream, or "" if that event is
// not an error.
func lastErrorCode(stream []byte) string {
	events := bytes.Split(bytes.Trim(stream, "\n"), []byte("\n\n")) // the first event may be incomplete
	last, isData := bytes.CutPrefix(events[len(events)-1], []byte("data: "))
	var event struct {
		Error *struct{ Message, Type, Code string }
	}
	if !isData || json.Unmarshal(last, &event) != nil || event.Error == nil {
		return ""
	}
	return event.Error.Code
}

func TestStreamThatItsReplicaEndsEarlyIsPassedAsItIs(t *testing.T) {
	t.Parallel()
	fleet := startEngines(t, 1, simulated.Config{})
	fleet[0].Engine().SetFaults(simulated.Faults{Cut: simulated.CutClean, CutAfter: 3})
	b := serve(t, demoConfig("", fleet...))
	body := chatBody("demo", "Hello", 16, true)
	want := chat(t.Context(), newClient(t, false), fleet[0].URL(), body)
	got := chat(t.Context(), newClient(t, false), b.url, body)
	if got.err != nil || !bytes.Equal(got.body, want.body) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestBufferedResponseThatBreaksOffIsAnError(t *testing.T) {
	t.Parallel()
	fleet := startEngines(t, 1, simulated.Config{})
	fleet[0].Engine().SetFaults(simulated.Faults{Cut: simulated.CutReset, CutAfter: 1})
	b := serve(t, demoConfig("", fleet...))
	forBothProtocols(t, func(t *testing.T, client *http.Client) {
		got := chat(t.Context(), client, b.url, chatBody("demo", "Hello", 16, false))
		if got.err != nil || got.status != http.StatusBadGateway || got.errorCode() != "upstream_broken" {
			t.Errorf("got %v, want 502 upstream_broken", got)
		}
	})
}

// errorCode returns the code of an error body in OpenAI's format, which has four keys, or "" for
// other bodies.
func (a response) errorCode() string {
	var body struct{ Error map[string]any }
	if json.Unmarshal(a.body, &body) != nil || len(body.Error) != 4 {
		return ""
	}
	code, _ := body.Error["code"].(string)
	return code
}
