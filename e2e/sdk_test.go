package e2e

import (
	"context"
	"strings"
	"testing"

	"berth/llmserver/simulated"
)

// sdkServer is the server for the tests of all SDKs, with a model for each outcome of a request.
type sdkServer struct {
	*berth
	engines map[string]*simulated.Server // by model
}

// serveSDKModels serves the models demo (alias assistant), full (the queue is full), dying (streams
// are aborted), limited (the engine responds 429) and silent (the engine never responds).
func serveSDKModels(t *testing.T) *sdkServer {
	e := &sdkServer{engines: map[string]*simulated.Server{}}
	config := loopbackConfig + "llm_configs:\n"
	for _, m := range []struct {
		name, deployment string
		faults           simulated.Faults
	}{
		{"demo", "", simulated.Faults{}},
		{"full", "max_ongoing_requests: 1, max_queued_requests: 0", simulated.Faults{Hang: true}},
		{"dying", "", simulated.Faults{Cut: simulated.CutAbort, CutAfter: 5}},
		{"limited", "", simulated.Faults{Status: 429}},
		{"silent", "", simulated.Faults{Hang: true}},
	} {
		engine := startEngines(t, 1, simulated.Config{Model: m.name})[0]
		engine.Engine().SetFaults(m.faults)
		e.engines[m.name] = engine
		config += modelConfig(m.name, m.deployment, engine)
	}
	e.berth = serve(t, strings.Replace(config, "{model_id: demo}", "{model_id: demo}\n  aliases: [assistant]", 1))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	blocked := startChat(ctx, newClient(t, false), e.url, chatBody("full", "Hello", 1, false))
	t.Cleanup(func() {
		cancel()
		waitResponse(t, blocked)
	})
	waitInFlight(t, e.engines["full"], 1)
	return e
}
