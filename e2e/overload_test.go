package e2e

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth/llmserver/simulated"
)

// In these tests the engines count their concurrent requests, and 30 % of the clients disconnect.

const (
	overloadEngines = 3
	overloadSlots   = 4 // per engine
	overloadClients = 96
	overloadRounds  = 10
)

// topologies start berth in front of engines and return the URLs of the ingresses.
var topologies = map[string]func(t *testing.T, engines []string) (ingresses []string){
	"ingress counts slots": func(t *testing.T, engines []string) []string {
		return []string{serve(t, overloadConfig("ingress", engines)).url}
	},
	"agents count slots for one ingress": func(t *testing.T, engines []string) []string {
		return []string{serve(t, overloadConfig("replica", startAgents(t, engines))).url}
	},
	"agents count slots for two ingresses": func(t *testing.T, engines []string) []string {
		agents := startAgents(t, engines)
		return []string{serve(t, overloadConfig("replica", agents)).url, serve(t, overloadConfig("replica", agents)).url}
	},
}

// startAgents starts an agent in front of each engine and returns their URLs.
func startAgents(t *testing.T, engines []string) (agents []string) {
	for _, engine := range engines {
		agents = append(agents, startAgent(t, engine, overloadSlots).url)
	}
	return agents
}

// overloadConfig returns a configuration with the given slot authority and replicas.
func overloadConfig(authority string, urls []string) string {
	list := ""
	for _, url := range urls {
		list += "\n  - {url: \"" + url + "\"}"
	}
	return loopbackConfig + "llm_configs:\n- model_loading_config: {model_id: demo}\n  slot_authority: " + authority +
		"\n  deployment_config: {max_ongoing_requests: " + strconv.Itoa(overloadSlots) + "}\n  replicas:" + list + "\n"
}

// runOverload sends requests of many clients, some of which disconnect.
func runOverload(t *testing.T, ingresses []string) {
	t.Helper()
	var complete, disconnected atomic.Int64
	var running sync.WaitGroup
	for c := range overloadClients {
		client := newClient(t, false)
		running.Go(func() {
			for round := range overloadRounds {
				ctx, cancel := context.WithCancel(t.Context())
				disconnects := rand.IntN(10) < 3
				early := disconnects && rand.IntN(2) == 0
				if early { // usually while queued
					time.AfterFunc(rand.N(400*time.Millisecond), cancel)
				}
				resp, err := postChat(ctx, client, ingresses[c%len(ingresses)], chatBody("demo", "Hello", 5+(c+round)%20, true))
				got := response{err: err}
				if err == nil {
					if disconnects && !early {
						io.CopyN(io.Discard, resp.Body, rand.Int64N(400)) // mid-stream
						cancel()
					}
					got = readResponse(resp)
				}
				cancel()
				switch {
				case got.isComplete():
					complete.Add(1)
				case disconnects:
					disconnected.Add(1)
				default:
					t.Errorf("client %d got %v", c, got)
				}
			}
		})
	}
	running.Wait()
	if disconnected.Load() == 0 || complete.Load() == 0 {
		t.Errorf("%d responses were complete and %d clients disconnected", complete.Load(), disconnected.Load())
	}
	t.Logf("%d responses were complete and %d clients disconnected", complete.Load(), disconnected.Load())
}

func TestCapacityHoldsAtTheEngineWhileClientsLeave(t *testing.T) {
	t.Parallel()
	for name, stack := range topologies {
		t.Run(name, func(t *testing.T) {
			fleet := startEngines(t, overloadEngines, simulated.Config{DecodeStep: 2 * time.Millisecond})
			var urls []string
			for _, e := range fleet {
				urls = append(urls, e.URL())
			}
			runOverload(t, stack(t, urls))
			aborted := int64(0)
			for _, e := range fleet {
				stats := e.Engine().Stats()
				aborted += stats.Aborted
				if stats.MaxInFlight > overloadSlots {
					t.Errorf("an engine with %d slots had up to %d concurrent requests", overloadSlots, stats.MaxInFlight)
				}
			}
			if t.Logf("%d requests were aborted", aborted); aborted == 0 {
				t.Error("no client disconnected mid-stream")
			}
		})
	}
}

// uvicornCount holds the statistics of engine.py. A request counts until the end of its task, and
// as working until its last chunk was sent or its task was cancelled.
type uvicornCount struct {
	Entered, Inside, Most, Over int
	LongestOverMS               float64 `json:"longest_over_ms"`
	MostWorking                 int     `json:"most_working"`
	OverWorking                 int     `json:"over_working"`
}

// A uvicorn task outlives its response by some turns of the event loop: after the last chunk, and
// after uvicorn has closed the connection of a disconnected client. No proxy can observe the end of
// the task. The bound on tasks is therefore loose: each slot may have one working and one ending
// task. Working tasks may exceed the capacity by one while uvicorn has closed a connection and not
// yet cancelled its task.
func TestCapacityNearlyHoldsAtUvicornWhileClientsLeave(t *testing.T) {
	t.Parallel()
	python := venvProgram(virtualenv(t, "uvicorn/requirements.txt"), "python")
	for name, stack := range topologies {
		t.Run(name, func(t *testing.T) {
			var urls []string
			for range overloadEngines {
				c := startCommand(t, "", python, "uvicorn/engine.py", strconv.Itoa(overloadSlots))
				var port []string
				eventually(t, "uvicorn listens", func() bool {
					port = regexp.MustCompile(`port (\d+)\n`).FindStringSubmatch(c.stdout.String())
					return port != nil
				})
				urls = append(urls, "http://127.0.0.1:"+port[1])
			}
			client := newClient(t, false)
			stats := func(url string) (n uvicornCount) {
				resp, err := client.Get(url + "/stats")
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				if err == nil {
					err = json.Unmarshal(text, &n)
				}
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			runOverload(t, stack(t, urls))
			for _, url := range urls {
				n := stats(url)
				t.Logf("%+v", n)
				if n.MostWorking > overloadSlots+1 || n.OverWorking*50 > n.Entered || n.Most > 2*overloadSlots || n.Inside != 0 {
					t.Errorf("an engine with %d slots reports %+v", overloadSlots, n)
				}
			}
		})
	}
}
