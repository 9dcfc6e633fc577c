package ingress

import (
	"log/slog"
	"testing"

	"berth/config"
	"berth/llmserver"
	"berth/routers"
)

// onClose is a backend that calls a function when its replica is taken out of service.
type onClose struct {
	llmserver.Backend
	f func()
}

func (b onClose) Close() {
	b.f()
	b.Backend.Close()
}

// A replica goes out of service only when no request can find its model any more, and none waits for it.
func TestReplicaIsRetiredAfterTheNewTableIsInUse(t *testing.T) {
	r := newRegistry(quietTelemetry(), slog.New(slog.DiscardHandler))
	var removed *model
	retired := 0
	r.pool.Dial = func(e llmserver.Endpoint) (llmserver.Backend, error) {
		backend, err := dial(e)
		return onClose{backend, func() {
			if retired++; retired > 1 {
				return // by the end of the test
			}
			if m := r.table.Load().find("m"); m != nil {
				t.Error("a request finds the model whose replica is out of service")
			}
			if _, err := removed.router.Choose(t.Context(), new(routers.Payload)); err != routers.ErrClosed {
				t.Errorf("a request that has found the model before gets %v; want ErrClosed", err)
			}
		}}, err
	}
	defer r.close()
	if err := r.apply(configured(modelOn("m", refusing(1)))); err != nil {
		t.Fatal(err)
	}
	removed = r.table.Load().find("m")
	if err := r.apply(configured(modelOn("n", refusing(2)))); err != nil {
		t.Fatal(err)
	}
	if retired != 1 {
		t.Errorf("%d replicas were retired", retired)
	}
}

// A model hears of its new replicas before its requests can wait for them. Else a slot that comes free in between
// would serve nobody.
func TestModelHearsOfNewReplicasBeforeItGoesByThem(t *testing.T) {
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
	f.registry.enact(f.registry.table.Load(), plan{config: changed, build: policy}, replicas)
	if missed != 0 {
		t.Error("the model did not hear of a slot that came free while it was given the replica")
	}
	moved.NotifyFreed()
	if missed != 0 {
		t.Error("the model does not hear of its new replica")
	}
}

// The block size of a configuration is that of its first model whose policy goes by blocks.
func TestBlocksAreThoseOfTheFirstModelThatGoesByThem(t *testing.T) {
	models := []config.Model{modelOn("m", refusing(1)), modelOn("n", refusing(2)), modelOn("o", refusing(3))}
	for i, bytes := range []int{256, 512} {
		models[i+1].Router = config.Router{Class: "PrefixCacheAffinityRouter", Kwargs: map[string]any{"block_bytes": bytes}}
	}
	if got := serve(t, models...).registry.table.Load().blockBytes; got != 256 {
		t.Errorf("a block has %d bytes; want 256", got)
	}
}
