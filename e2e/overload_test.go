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

// Engines count how many requests they work on at once, and three in ten clients leave at some moment.

const (
	overloadEngines = 3
	overloadSlots   = 4 // of each engine
	overloadClients = 96
	overloadRounds  = 10
)

// stacks are the ways to put berth in front of engines, each with the ingresses that clients may ask.
var topologies = map[string]func(t *testing.T, engines []string) (ingresses []string){
	"one ingress counts": func(t *testing.T, engines []string) []string {
		return []string{serve(t, overloadConfig("ingress", engines)).url}
	},
	"agents count for one ingress": func(t *testing.T, engines []string) []string {
		return []string{serve(t, overloadConfig("replica", startAgents(t, engines))).url}
	},
	"agents count for two ingresses": func(t *testing.T, engines []string) []string {
		agents := startAgents(t, engines)
		return []string{serve(t, overloadConfig("replica", agents)).url, serve(t, overloadConfig("replica", agents)).url}
	},
}

func startAgents(t *testing.T, engines []string) (agents []string) {
	for _, engine := range engines {
		agents = append(agents, startAgent(t, engine, overloadSlots).url)
	}
	return agents
}

func overloadConfig(authority string, urls []string) string {
	list := ""
	for _, url := range urls {
		list += "\n  - {url: \"" + url + "\"}"
	}
	return loopbackConfig + "llm_configs:\n- model_loading_config: {model_id: demo}\n  slot_authority: " + authority +
		"\n  deployment_config: {max_ongoing_requests: " + strconv.Itoa(overloadSlots) + "}\n  replicas:" + list + "\n"
}

// overload has many clients ask, of whom some leave.
func runOverload(t *testing.T, ingresses []string) {
	t.Helper()
	var complete, left atomic.Int64
	var running sync.WaitGroup
	for c := range overloadClients {
		client := newClient(t, false)
		running.Go(func() {
			for round := range overloadRounds {
				ctx, cancel := context.WithCancel(t.Context())
				leaves := rand.IntN(10) < 3
				early := leaves && rand.IntN(2) == 0
				if early { // most of them in the queue
					time.AfterFunc(rand.N(400*time.Millisecond), cancel)
				}
				resp, err := postChat(ctx, client, ingresses[c%len(ingresses)], chatBody("demo", "Hello", 5+(c+round)%20, true))
				got := response{err: err}
				if err == nil {
					if leaves && !early {
						io.CopyN(io.Discard, resp.Body, rand.Int64N(400)) // in the stream
						cancel()
					}
					got = readResponse(resp)
				}
				cancel()
				switch {
				case got.isComplete():
					complete.Add(1)
				case leaves:
					left.Add(1)
				default:
					t.Errorf("client %d got %v", c, got)
				}
			}
		})
	}
	running.Wait()
	if left.Load() == 0 || complete.Load() == 0 {
		t.Errorf("%d responses came complete and %d clients left", complete.Load(), left.Load())
	}
	t.Logf("%d responses came complete and %d clients left", complete.Load(), left.Load())
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
				did := e.Engine().Stats()
				aborted += did.Aborted
				if did.MaxInFlight > overloadSlots {
					t.Errorf("an engine of %d slots had up to %d requests at once", overloadSlots, did.MaxInFlight)
				}
			}
			if t.Logf("%d requests were aborted", aborted); aborted == 0 {
				t.Error("no client left in its stream")
			}
		})
	}
}

// uvicornCount is what engine.py says of itself. A request counts until its task has ended, and as
// working until it has sent its last chunk or was cancelled.
type uvicornCount struct {
	Entered, Inside, Most, Over int
	LongestOverMS               float64 `json:"longest_over_ms"`
	MostWorking                 int     `json:"most_working"`
	OverWorking                 int     `json:"over_working"`
}

// A task of uvicorn outlives what can be seen of it, by some turns of its event loop: after it has sent
// the last chunk, and after uvicorn has closed the connection of a client that has left. No proxy sees
// the task's own end. So the tasks are bounded loosely: each slot may have one that is at work and one
// that is on its way out. Those at work may pass the capacity by one where uvicorn has closed a
// connection and has yet to cancel the task.
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
					t.Errorf("an engine of %d slots counts %+v", overloadSlots, n)
				}
			}
		})
	}
}
