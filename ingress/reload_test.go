package ingress

import (
	"log/slog"
	"testing"

	"berth/config"
	"berth/llmserver"
	"berth/routers"
)

// onClose is a backend that calls a function when its replica is retired.
type onClose struct {
	llmserver.Backend
	f func()
}

func (b onClose) Close() {
	b.f()
	b.Backend.Close()
}

// A replica goes out of service only when no request can find its model any more, and none waits
// for it.
func TestReplicaIsRetiredAfterTheNewTableIsInUse(t *testing.T) {
	r := newRegistry(quietTelemetry(), slog.New(slog.DiscardHandler))
	var removed *model
	retired := 0
	r.pool.Dial = func(e llmserver.Endpoint) (llmserver.Backend, error) {
		backend, err := dialBackend(e)
		return onClose{backend, func() {
			if retired++; retired > 1 {
				return // at the end of the test
			}
			if m := r.table.Load().findModel("m"); m != nil {
				t.Error("a request finds the model of a retired replica")
			}
			if _, err := removed.router.Choose(t.Context(), new(routers.Payload)); err != routers.ErrClosed {
				t.Errorf("a request that found the model earlier gets %v; want ErrClosed", err)
			}
		}}, err
	}
	defer r.close()
	if err := r.apply(configured(modelOn("m", refusing(1)))); err != nil {
		t.Fatal(err)
	}
	removed = r.table.Load().findModel("m")
	if err := r.apply(configured(modelOn("n", refusing(2)))); err != nil {
		t.Fatal(err)
	}
	if retired != 1 {
		t.Errorf("%d replicas were retired", retired)
	}
}

// A model observes its new replicas before its requests can wait for them. Otherwise a slot that is
// freed in between would serve no waiter.
func TestReloadObservesReplicasBeforeUse(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)), modelOn("n", refusing(2)))
	moved := f.model("n").replicas[0]
	missed := 0
	moved.OnChange(func() { missed++ })
	policy := func(members []*llmserver.Replica, prev routers.Policy) routers.Policy {
		moved.NotifyFreed()
		return prev
	}
	changed := modelOn("m", refusing(1), refusing(2))
	replicas := []*llmserver.Replica{f.model("m").replicas[0], moved}
	f.registry.buildModel(f.registry.table.Load(), modelPlan{config: changed, build: policy}, replicas)
	if missed != 0 {
		t.Error("a slot that was freed while the replica was added served no waiter")
	}
	moved.NotifyFreed()
	if missed != 0 {
		t.Error("the model does not observe its new replica")
	}
}

// The block size of a configuration is that of its first model whose policy uses prompt blocks.
func TestReloadBlockSizeOfFirstPrefixModel(t *testing.T) {
	models := []config.Model{modelOn("m", refusing(1)), modelOn("n", refusing(2)), modelOn("o", refusing(3))}
	for i, bytes := range []int{256, 512} {
		models[i+1].Router = config.Router{Class: "PrefixCacheAffinityRouter", Kwargs: map[string]any{"block_bytes": bytes}}
	}
	if got := serve(t, models...).registry.table.Load().blockBytes; got != 256 {
		t.Errorf("a block has %d bytes; want 256", got)
	}
}
