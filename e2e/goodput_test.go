package e2e

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth/llmserver/simulated"
)

// The scale of TestOverloadGoodputOfImpatientClients: 12 slots of 0.25 s each, and clients that
// leave after 1.5 s, six times as long. An overload begins after 10 s at the earliest.
const (
	goodputBody     = 25 // tokens of 10 ms each
	goodputPatience = 1500 * time.Millisecond
	goodputWarmUp   = 13 * time.Second
	goodputMeasured = 5 * time.Second
)

// At twice the capacity, default settings complete nine tenths of what a closed loop completes,
// and refuse the others at once, although clients leave.
func TestOverloadGoodputOfImpatientClients(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ingress counts slots", "agents count slots for one ingress"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fleet := startEngines(t, overloadEngines, simulated.Config{DecodeStep: 10 * time.Millisecond, DecodeStepPerRequest: 1})
			var urls []string
			for _, e := range fleet {
				urls = append(urls, e.URL())
			}
			ingress := topologies[name](t, urls)[0]
			client := newClient(t, false)
			body := chatBody("demo", "Hello", goodputBody, true)
			capacity := closedLoopRate(t, client, ingress, body)
			var complete, refused, slow atomic.Int64
			var running sync.WaitGroup
			began := time.Now()
			for n := 0; ; n++ {
				due := began.Add(time.Duration(float64(n) / (2 * capacity) * float64(time.Second)))
				measured := due.Sub(began) > goodputWarmUp
				if due.Sub(began) > goodputWarmUp+goodputMeasured {
					break
				}
				time.Sleep(time.Until(due))
				running.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), goodputPatience)
					defer cancel()
					sent := time.Now()
					got := chat(ctx, client, ingress, body)
					switch took := time.Since(sent); {
					case !measured:
					case got.isComplete():
						complete.Add(1)
					case got.status == http.StatusTooManyRequests:
						refused.Add(1)
						checkRetryAfter(t, got)
						if got.errorCode() != "overloaded" {
							t.Errorf("refused by %v", got)
						}
						if took > 50*time.Millisecond {
							slow.Add(1)
						}
					}
				})
			}
			running.Wait()
			goodput := float64(complete.Load()) / goodputMeasured.Seconds()
			t.Logf("%.1f of %.1f a second completed; %d refused, %d of them later than 50 ms", goodput, capacity, refused.Load(), slow.Load())
			if goodput < 0.9*capacity {
				t.Errorf("%.1f of %.1f a second completed", goodput, capacity)
			}
			if slow.Load()*10 > refused.Load() || refused.Load() == 0 {
				t.Errorf("%d of %d refusals came later than 50 ms", slow.Load(), refused.Load())
			}
		})
	}
}

// closedLoopRate returns the rate at which the fleet completes requests with a client more than
// slots on each engine.
func closedLoopRate(t *testing.T, client *http.Client, url, body string) (perSecond float64) {
	t.Helper()
	const lasts = 3 * time.Second
	var complete atomic.Int64
	var running sync.WaitGroup
	until := time.Now().Add(lasts)
	for c := range overloadEngines * (overloadSlots + 1) {
		running.Go(func() {
			for time.Now().Before(until) {
				if got := chat(t.Context(), client, url, body); !got.isComplete() {
					t.Errorf("client %d of the closed loop got %v", c, got)
				} else if time.Now().Before(until) {
					complete.Add(1)
				}
			}
		})
	}
	running.Wait()
	return float64(complete.Load()) / lasts.Seconds()
}
