package telemetry

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"berth/llmserver"
)

func TestTracingOffCostsNothing(t *testing.T) {
	telemetry := newTelemetry()
	r, in, h := new(Request), httptest.NewRequest("POST", "/", nil), http.Header{}
	if n := testing.AllocsPerRun(100, func() {
		telemetry.Begin(r, in, "/", false)
		choose := telemetry.StartChoose(t.Context())
		if choose.Recording() {
			t.Error("a span is recorded")
		}
		choose.EndChoose(r, "")
		ctx, attempt := telemetry.StartAttempt(t.Context())
		telemetry.InjectTrace(ctx, h)
		attempt.SetError(llmserver.ErrFull.Error())
		attempt.EndAttempt(r)
		r.endSpan()
	}); n != 0 {
		t.Errorf("a request that is not traced takes %v allocations", n)
	}
}
