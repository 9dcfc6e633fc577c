package ingress

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"berth/config"
	"berth/llmserver"
)

func TestWireVariableSelectsNetHTTP(t *testing.T) {
	backends := func(f *front) (all []llmserver.Backend) {
		dialAs := f.registry.pool.Dial
		f.registry.pool.Dial = func(e llmserver.Endpoint) (llmserver.Backend, error) {
			b, err := dialAs(e)
			all = append(all, b)
			return b, err
		}
		f.mustApply(modelOn("m", upstream(t, ok)))
		return all
	}
	for _, value := range []string{"", "net/http"} {
		t.Setenv("BERTH_WIRE", value)
		f := serve(t, modelOn("n", refusing(1)))
		dialled := backends(f)
		if len(dialled) != 1 {
			t.Fatalf("%d replicas were dialled", len(dialled))
		}
		_, plainServer := f.public.front.(*http.Server)
		own := !dialled[0].(*llmserver.HTTP).NetHTTP()
		if plainServer != (value != "") || own != (value == "") {
			t.Errorf("with BERTH_WIRE=%s: served by %T, and replicas by %T", value, f.public.front, dialled[0])
		}
		if r := f.chat("m"); r.body != "ok" {
			t.Errorf("with BERTH_WIRE=%s: %d %s %v", value, r.StatusCode, r.body, r.err)
		}
		if told := strings.Contains(f.log.take(), "BERTH_WIRE=net/http"); told != (value != "") {
			t.Errorf("with BERTH_WIRE=%s logged: %t", value, told)
		}
	}
	t.Setenv("BERTH_WIRE", "http2")
	c := configured(modelOn("m", refusing(1)))
	c.Admin = config.Admin{}
	if _, err := New(c, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "BERTH_WIRE") {
		t.Errorf("an unknown value was accepted: %v", err)
	}
}
