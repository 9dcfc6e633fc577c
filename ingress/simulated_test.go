package ingress

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/config"
)

func simulatedModel(id string, replicas int) config.Model {
	m := modelOn(id)
	m.MaxOngoingRequests = 4
	m.Simulated = &config.Simulated{
		Replicas:               replicas,
		PrefillTokensPerSecond: 1e6,
		DecodeStep:             time.Millisecond,
		DecodeStepPerRequest:   time.Microsecond,
		KVCacheTokens:          1 << 16,
	}
	return m
}

func TestSimulatedEnginesSurviveReload(t *testing.T) {
	f := serve(t, simulatedModel("s", 2))
	urls := func() (urls []string) {
		for _, r := range f.model("s").replicas {
			urls = append(urls, r.Endpoint().URL)
		}
		return urls
	}
	two := urls()
	f.mustApply(simulatedModel("s", 3), modelOn("m", refusing(1)))
	if three := urls(); len(three) != 3 || !slices.Equal(three[:2], two) {
		t.Errorf("%q became %q", two, three)
	}
	f.mustApply(simulatedModel("s", 1))
	if one := urls(); !slices.Equal(one, two[:1]) {
		t.Errorf("%q became %q", two, one)
	}
	f.eventually("the removed engine has stopped", func() bool {
		resp, err := http.Get(two[1] + "/health")
		if err == nil {
			resp.Body.Close()
		}
		return err != nil
	})
	slower := simulatedModel("s", 1)
	slower.Simulated.DecodeStep *= 2
	f.mustApply(slower)
	if other := urls(); slices.Equal(other, two[:1]) {
		t.Error("an engine with other settings is the same one")
	}
	r := f.chat("s")
	var answer struct{ Choices []any }
	if err := json.Unmarshal([]byte(r.body), &answer); err != nil || len(answer.Choices) != 1 || r.Header.Get("X-Simulated-Replica") != "s-1" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
}

func TestSimulatedEngineFinishesStreamsWhenStopped(t *testing.T) {
	f := serve(t, simulatedModel("m", 1))
	resp, err := f.h1.Post("http://"+f.Address()+"/v1/chat/completions", "application/json",
		strings.NewReader(`{"model":"m","stream":true,"max_tokens":100,"messages":[{"role":"user","content":"Hi"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	f.mustApply(modelOn("n", refusing(1)))
	if text, err := io.ReadAll(resp.Body); err != nil || !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
		t.Errorf("the stream ended with %q and %v", text[max(0, len(text)-100):], err)
	}
}
