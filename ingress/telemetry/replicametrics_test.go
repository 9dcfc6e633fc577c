package telemetry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

func TestReplicaMetricsKindOfEachFailure(t *testing.T) {
	failed := func(err error) routers.Outcome { return routers.Outcome{Dispatched: true, Err: err} }
	answered := func(status int, err error) routers.Outcome {
		return routers.Outcome{Dispatched: true, Status: status, Err: err}
	}
	for want, outcomes := range map[string][]routers.Outcome{
		"":              {{}, {Err: llmserver.ErrGone}, failed(llmserver.ErrExhausted), answered(200, nil), answered(429, nil)},
		"no_connection": {failed(llmserver.ErrNoConnection), failed(fmt.Errorf("%w: %w", llmserver.ErrNoConnection, llmserver.ErrConnectTimeout))},
		"broken": {failed(llmserver.ErrBroken), failed(fmt.Errorf("%w: %w", llmserver.ErrBroken, llmserver.ErrStale)),
			answered(200, streaming.ErrUpstreamBroken), answered(500, streaming.ErrUpstreamBroken)},
		"timeout": {failed(llmserver.ErrTimeout), failed(fmt.Errorf("%w: %w", llmserver.ErrTimeout, llmserver.ErrSendTimeout)),
			failed(&streaming.AbortError{}), answered(200, fmt.Errorf("%w: %w", streaming.ErrUpstreamBroken, &streaming.AbortError{}))},
		"invalid":          {failed(llmserver.ErrNotHTTP)},
		"status_5xx":       {answered(500, nil), answered(503, fmt.Errorf("%w: text", llmserver.ErrServerError)), answered(500, llmserver.ErrEngineDead), answered(200, llmserver.ErrServerError)},
		"silent":           {{Dispatched: true, Silent: true, Err: context.Canceled}, failed(llmserver.ErrSilent)},
		"model_not_served": {answered(404, llmserver.ErrModelNotServed)},
		"refused":          {failed(llmserver.ErrToken), failed(llmserver.ErrFull), failed(llmserver.ErrDraining)},
		"busy":             {answered(503, llmserver.ErrBusy)},
		"aborted":          {failed(context.Canceled), answered(200, fmt.Errorf("%w: by itself", streaming.ErrClientGone))},
	} {
		for _, o := range outcomes {
			if got := failureKinds[failureOf(o)]; got != want {
				t.Errorf("%+v is %q; want %q", o, got, want)
			}
		}
	}
}

func TestReplicaMetricsCountWithoutAllocation(t *testing.T) {
	m, replica, r := NewModelMetrics("m"), newReplica("a"), finished()
	m.SetReplicas([]*llmserver.Replica{replica})
	r.Measured, r.Dispatched, r.Response.FirstByte, r.Tap.FirstContent = true, r.Start, r.end, r.end
	o := routers.Outcome{Dispatched: true, Status: 200}
	if n := testing.AllocsPerRun(100, func() { m.Replica(replica).CountAttempt(r, o) }); n != 0 {
		t.Errorf("counting an attempt takes %v allocations", n)
	}
	if got := counterValues(t, m, "berth_replica_requests_total"); !maps.Equal(got, map[string]float64{"m,a,200": 101}) {
		t.Errorf("counted %v", got)
	}
	if got := counterValues(t, m, "berth_replica_tokens_total"); !maps.Equal(got, map[string]float64{"estimated,m,a": 101}) {
		t.Errorf("counted %v", got)
	}
}

// The process that follows another one under the same name counts on, also while both have
// requests.
func TestReplicaMetricsFollowTheName(t *testing.T) {
	m, before, after := NewModelMetrics("m"), newReplica("a"), newReplica("a")
	o := routers.Outcome{Dispatched: true, Status: 200}
	m.SetReplicas([]*llmserver.Replica{before})
	slot, err := before.TryReserve("", 0)
	if err != nil {
		t.Fatal(err)
	}
	m.Replica(before).CountAttempt(finished(), o)
	m.SetReplicas([]*llmserver.Replica{after})
	m.Replica(before).CountAttempt(finished(), o)
	m.Replica(after).CountAttempt(finished(), o)
	if got := counterValues(t, m, "berth_replica_requests_total"); !maps.Equal(got, map[string]float64{"m,a,200": 3}) {
		t.Errorf("counted %v", got)
	}
	slot.Release()
}

// A removed replica is exposed and counted while it has requests, and is then forgotten.
func TestReplicaMetricsOfRemovedReplicas(t *testing.T) {
	m, busy, idle := NewModelMetrics("m"), newReplica("busy"), newReplica("idle")
	o := routers.Outcome{Dispatched: true, Status: 500}
	m.SetReplicas([]*llmserver.Replica{busy, idle})
	slot, err := busy.TryReserve("", 0)
	if err != nil {
		t.Fatal(err)
	}
	m.Replica(idle).CountAttempt(finished(), o)
	for range 3 {
		m.SetReplicas([]*llmserver.Replica{newReplica("c")})
	}
	m.Replica(idle).CountAttempt(finished(), o)
	m.Replica(busy).CountAttempt(finished(), o)
	if got := counterValues(t, m, "berth_replica_failures_total"); !maps.Equal(got, map[string]float64{"status_5xx,m,busy": 1}) {
		t.Errorf("exposed are %v", got)
	}
	slot.Release()
	if got := counterValues(t, m, "berth_replica_failures_total"); len(got) > 0 {
		t.Errorf("%v are exposed of a replica that has left", got)
	}
	m.SetReplicas(nil)
	m.SetReplicas(nil)
	if set := m.replicas.current.Load(); len(set.metrics)+len(set.named)+len(set.present) > 0 {
		t.Errorf("%+v is kept", set)
	}
}

// Reloads in a loop that rename the replicas leave nothing behind.
func TestReplicaMetricsAreBoundedOverReloads(t *testing.T) {
	m := NewModelMetrics("m")
	for i := range 300 {
		replica := newReplica(fmt.Sprint(i))
		m.SetReplicas([]*llmserver.Replica{replica})
		m.Replica(replica).CountAttempt(finished(), routers.Outcome{Dispatched: true})
		if set := m.replicas.current.Load(); len(set.metrics) > 2 || len(set.named) > 2 || len(set.present) > 1 {
			t.Fatalf("after %d reloads %+v is kept", i+1, set)
		}
		if got := counterValues(t, m, "berth_replica_requests_total"); len(got) != 1 {
			t.Fatalf("after %d reloads %v are exposed", i+1, got)
		}
	}
}

func TestReplicaMetricsOfReservations(t *testing.T) {
	m := NewModelMetrics("m")
	m.SetReplicas([]*llmserver.Replica{newReplica("a")})
	hooks := newTelemetry().RouterHooks(m, noPolicy)
	for _, err := range []error{llmserver.ErrFull, llmserver.ErrDraining, llmserver.ErrExhausted, context.Canceled,
		llmserver.ErrNoConnection, llmserver.ErrTimeout, errors.New("unclear")} {
		hooks.Rejected(nil, "a", fmt.Errorf("replica a: %w", err))
		hooks.AgentWaitEnded("a", true, err)
	}
	want := map[string]float64{"no_connection,m,a": 2, "timeout,m,a": 2, "broken,m,a": 2}
	if got := counterValues(t, m, "berth_replica_failures_total"); !maps.Equal(got, want) {
		t.Errorf("counted %v; want %v", got, want)
	}
}

func TestReplicaMetricsLatencyRunsFromTheDispatch(t *testing.T) {
	m, replica, r := NewModelMetrics("m"), newReplica("a"), finished()
	m.SetReplicas([]*llmserver.Replica{replica})
	for _, latency := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second} {
		r.Dispatched = r.Start.Add(time.Minute)
		r.Response.FirstByte = r.Dispatched.Add(latency)
		m.Replica(replica).CountAttempt(r, routers.Outcome{Dispatched: true, Status: 200})
	}
	if l := &m.Replica(replica).firstByte; l.count.Load() != 3 || l.nanoseconds.Load() != uint64(6*time.Second) {
		t.Errorf("the sum is %v ns of %v", l.nanoseconds.Load(), l.count.Load())
	}
}

// Requests are counted by the pair of their labels.
func TestModelMetricsSeriesAreNotMixedUp(t *testing.T) {
	m, r := NewModelMetrics("m"), finished()
	for _, route := range []string{"/a", "/b"} {
		for status, n := range map[int]int{200: 1, 299: 2, 300: 3, 999: 4} {
			r.Metrics, r.Route, r.Status = m, route, status
			for range n {
				r.countMetrics()
			}
		}
	}
	r.Status = 1000
	r.countMetrics()
	want := map[string]float64{"m,/a,200": 1, "m,/a,299": 2, "m,/a,300": 3, "m,/a,999": 4, "m,/b,200": 1, "m,/b,299": 2, "m,/b,300": 3, "m,/b,999": 5}
	if got := counterValues(t, m, "berth_requests_total"); !maps.Equal(got, want) {
		t.Errorf("counted %v; want %v", got, want)
	}
}
