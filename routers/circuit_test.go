package routers

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
	"berth/llmserver/agent"
)

// ejection is the time until the trial of an ejected replica, and failures the number of consecutive
// failures before an ejection.
const (
	ejection = time.Second
	failures = 5
)

// eject fails requests on a replica until its circuit opens, while a sibling responds. The replica
// is compared with that sibling afterwards.
func eject(t testing.TB, r *llmserver.Replica) {
	t.Helper()
	sibling := llmserver.NewReplica(llmserver.Endpoint{ID: "sibling", Limit: 1}, &fakeBackend{held: make(map[llmserver.Token]bool), capacity: 1})
	llmserver.CompareReplicas([]*llmserver.Replica{r, sibling})
	for range failures {
		s, err := r.ForceReserve("victim")
		if err != nil {
			t.Fatal(err)
		}
		s.ReportFailure(llmserver.ErrServerError)
		s.Release()
		respond(t, sibling)
	}
	if _, open := r.Ejected(); open {
		return
	}
	s, err := r.ForceReserve("victim")
	if err != nil {
		t.Fatal(err)
	}
	s.ReportFailure(llmserver.ErrServerError) // the first one after a response of the sibling
	s.Release()
	if _, open := r.Ejected(); !open {
		t.Fatalf("replica %s is %s", r.ID(), r.State())
	}
}

// respond makes a replica send a response.
func respond(t testing.TB, r *llmserver.Replica) {
	t.Helper()
	s, err := r.TryReserve("response", 0)
	if err == nil {
		err = s.Confirm(context.Background(), 0)
	}
	if err == nil {
		err = s.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	resp, err := r.Do(&http.Request{}, s)
	if err != nil {
		t.Fatal(err)
	}
	io.ReadAll(resp.Body)
	resp.Body.Close()
}

// newWatchingRouter returns a router that refreshes when its replicas change.
func newWatchingRouter(f *fleet, build Builder, limits Limits) *Router {
	r := New(f.replicas, build, limits, Hooks{})
	for _, m := range f.replicas {
		m.OnChange(r.Refresh)
	}
	return r
}

// out returns the IDs of the replicas that are not available.
func (f *fleet) out() (ids string) {
	for _, r := range f.replicas {
		if !r.Available() {
			ids += r.ID()
		}
	}
	return ids
}

func TestRouterEjectedReplicaUsesUpNoFallback(t *testing.T) {
	f := newFleet(t, 4, 4, 4, 4)
	r := newWatchingRouter(f, ConsistentHash(HashOptions{VirtualNodes: 100, Fallbacks: 1}, rand.Uint64), roomy)
	p := &Payload{SessionID: "session"}
	before := rankAll(r.Policy(), p)
	eject(t, before[0])
	after := rankAll(r.Policy(), p)
	if len(after) != 2 || after[0] != before[1] {
		t.Errorf("%d replicas are ranked", len(after))
	}
	if sel := mustChoose(t, r, ""); sel.Replica() == before[0] {
		t.Error("it was chosen")
	} else {
		sel.Release()
	}
}

func TestRouterPanicThresholdKeepsOutHalfAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for n := 1; n <= 7; n++ {
			f := newFleet(t, slices.Repeat([]int{failures}, n)...)
			newWatchingRouter(f, newByText, roomy)
			var out []*llmserver.Replica
			for i := range n {
				m := f.replicas[(i*3+1)%n]
				if n%3 == 0 {
					m = f.replicas[i]
				}
				eject(t, m)
				if len(out) < n/2 {
					out = append(out, m)
				}
				for _, r := range f.replicas {
					if r.Available() == slices.Contains(out, r) {
						t.Errorf("of %d, %d ejected: %s is available: %t", n, i+1, r.ID(), r.Available())
					}
				}
				time.Sleep(time.Millisecond)
			}
		}
	})
}

func TestRouterPanicThresholdKeepsTheLastReplicaThatIsUp(t *testing.T) {
	f := newFleet(t, 4, 4, 4, 4)
	r := newWatchingRouter(f, newByText, roomy)
	for _, i := range []int{0, 1, 2} {
		f.replicas[i].Drain()
	}
	eject(t, f.replicas[3])
	if f.out() != "abc" {
		t.Errorf("%s are unavailable", f.out())
	}
	sel := mustChoose(t, r, "d")
	if sel.Replica() != f.replicas[3] {
		t.Errorf("it went to %s", sel.Replica().ID())
	}
	sel.Release()
}

// A replica that the panic threshold has made eligible is kept out when another one recovers, and
// the reverse.
func TestRouterPanicThresholdFollowsRecoveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newProbedFleet(t, 10*time.Second, 9, 9, 9)
		r := newWatchingRouter(f, newByText, roomy)
		synctest.Wait()
		eject(t, f.replicas[0])
		f.fakes[1].down.Store(true)
		if sel := mustChoose(t, r, "b"); true {
			sel.Dispatch(&http.Request{})
			sel.Release()
		}
		if f.out() != "ab" {
			t.Errorf("%s are out", f.out())
		}
		eject(t, f.replicas[2])
		if f.out() != "ab" {
			t.Errorf("%s are out; want the last replica that is up eligible", f.out())
		}
		f.fakes[1].down.Store(false)
		time.Sleep(20 * time.Second)
		eject(t, f.replicas[0]) // again: its trial has failed
		if synctest.Wait(); f.out() != "a" {
			t.Errorf("%s are out; want no more than half unavailable", f.out())
		}
	})
}

func TestRouterLastResortTriesAllAndNamesReasons(t *testing.T) {
	f := newFleet(t, 4, 4, 4, 4)
	r := newWatchingRouter(f, newByText, roomy)
	eject(t, f.replicas[0])
	for _, fake := range f.fakes[1:3] {
		fake.down.Store(true)
	}
	f.replicas[3].Drain()
	for range 2 { // the second time with their state known
		sel, err := r.Choose(t.Context(), &Payload{}, f.replicas[0])
		if err == nil {
			sel.Release()
			t.Fatal("a replica that is down was chosen")
		}
		for _, part := range []string{"none of 4 replicas", "b: no connection", "c: no connection", "d: draining"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not contain %q", err, part)
			}
		}
	}
	if f.replicas[1].Up() || f.replicas[2].Up() {
		t.Fatal("their state is not known")
	}
	f.fakes[2].down.Store(false) // no probe has noticed yet
	sel, err := r.Choose(t.Context(), &Payload{}, f.replicas[0])
	if err != nil {
		t.Fatalf("Choose = %v; want the replica that has recovered", err)
	}
	if sel.Replica() != f.replicas[2] {
		t.Errorf("it went to %s", sel.Replica().ID())
	}
	serve(t, sel)
	f.wantIdle(t)
}

func TestRouterLastResortTriesAnEjectedReplica(t *testing.T) {
	f := newFleet(t, failures, 4)
	r := newWatchingRouter(f, newByText, roomy)
	eject(t, f.replicas[0])
	if f.out() != "a" {
		t.Fatalf("%s are out", f.out())
	}
	sel := mustChoose(t, r, "", f.replicas[1])
	if sel.Replica() != f.replicas[0] {
		t.Errorf("it went to %s", sel.Replica().ID())
	}
	sel.Release()
	if _, err := r.Choose(t.Context(), &Payload{}, f.replicas...); err == nil {
		t.Error("a replica that was tried is tried again")
	}
}

// Half open: one probing request at a time, from the queue or not, until its first byte.
func TestRouterQueueProvidesTheProbeOfAnEjectedReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, failures, 1)
		r := newWatchingRouter(f, newByText, Limits{MaxQueued: -1, QueueTimeout: time.Hour})
		old := mustChoose(t, r, "a")
		eject(t, f.replicas[0])
		holder := mustChoose(t, r, "b")
		all := []*request{startChoose(t, r, "ab"), startChoose(t, r, "ab"), startChoose(t, r, "ab")}
		synctest.Wait()
		if r.QueueLength() != 3 {
			t.Fatalf("%d wait while the one is ejected and the other full", r.QueueLength())
		}
		time.Sleep(ejection)
		synctest.Wait()
		probe := slices.IndexFunc(all, (*request).returned)
		if probe < 0 || r.QueueLength() != 2 {
			t.Fatalf("%d wait when its time is over; want one served", r.QueueLength())
		}
		serve(t, old) // from before the ejection: its slot is not handed over
		if synctest.Wait(); r.QueueLength() != 2 {
			t.Errorf("%d wait during the probe", r.QueueLength())
		}
		all[probe].payload.Stream = true
		resp, err := all[probe].sel.Dispatch(&http.Request{})
		if err != nil {
			t.Fatal(err)
		}
		if synctest.Wait(); r.QueueLength() != 2 {
			t.Errorf("%d wait before the probe's first byte", r.QueueLength())
		}
		resp.Body.Read(make([]byte, 1))
		if synctest.Wait(); r.QueueLength() != 0 {
			t.Errorf("%d wait after it", r.QueueLength())
		}
		all[probe].sel.Release()
		for i, q := range all {
			if i != probe {
				<-q.done
				serve(t, q.sel)
			}
		}
		serve(t, holder)
		f.wantIdle(t)
	})
}

func TestRouterTriesAgainASecondAfterAnInconclusiveTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, failures, 1)
		r := newWatchingRouter(f, newByText, Limits{MaxQueued: -1, QueueTimeout: time.Hour})
		eject(t, f.replicas[0])
		holder := mustChoose(t, r, "b")
		time.Sleep(ejection)
		probe := mustChoose(t, r, "ab")
		if probe.Replica() != f.replicas[0] {
			t.Fatalf("it went to %s", probe.Replica().ID())
		}
		q := startChoose(t, r, "ab")
		synctest.Wait()
		if q.returned() {
			t.Fatal("there are two probes")
		}
		probe.Release()
		<-q.done
		if q.took != time.Second || q.sel.Replica() != f.replicas[0] {
			t.Errorf("the next one waited %v for %s", q.took, q.sel.Replica().ID())
		}
		serve(t, q.sel)
		serve(t, holder)
		f.wantIdle(t)
	})
}

func TestRouterProbesAnEjectedReplicaWithOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 100, 100)
		r := newWatchingRouter(f, newByText, roomy)
		eject(t, f.replicas[0])
		time.Sleep(ejection)
		var probes atomic.Int32
		var all sync.WaitGroup
		var release sync.WaitGroup
		release.Add(1)
		for range 64 {
			all.Go(func() {
				sel := mustChoose(t, r, "ab")
				defer sel.Release()
				if sel.Replica() == f.replicas[0] {
					probes.Add(1)
				}
				release.Wait()
			})
		}
		synctest.Wait()
		if n := probes.Load(); n != 1 {
			t.Errorf("%d requests probe it", n)
		}
		release.Done()
		all.Wait()
		f.wantIdle(t)
	})
}

func TestRouterProbeFlapRebuildsNoRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newProbedFleet(t, time.Second, 4, 4, 4)
		built := 0
		hash := ConsistentHash(HashOptions{VirtualNodes: 100, Fallbacks: 2}, rand.Uint64)
		r := newWatchingRouter(f, func(members []*llmserver.Replica, prev Policy) Policy {
			built++
			return hash(members, prev)
		}, roomy)
		ring, members := r.Policy().(*consistentHash).ring, r.Members()
		p := &Payload{SessionID: "session"}
		before := rankAll(r.Policy(), p)
		var flaps atomic.Int32
		f.replicas[0].OnChange(func() { flaps.Add(1); r.Refresh() })
		for range 10 {
			f.fakes[0].down.Store(true)
			time.Sleep(time.Minute)
			f.fakes[0].down.Store(false)
			time.Sleep(time.Minute)
		}
		eject(t, f.replicas[0])
		if flaps.Load() != 21 {
			t.Errorf("it changed %d times", flaps.Load())
		}
		time.Sleep(ejection)
		if built != 1 || r.Policy().(*consistentHash).ring != ring || !slices.Equal(r.Members(), members) {
			t.Errorf("%d policies were built", built)
		}
		if after := rankAll(r.Policy(), p); !slices.Equal(before, after) {
			t.Error("the session is elsewhere")
		}
	})
}

// A recovered replica has no load and is not flooded for that; a policy that ranks it first still
// gets it.
func TestRouterRecoveredReplicaStartsSlowlyAndKeepsItsRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newProbedFleet(t, time.Second, 1000, 1000)
		r := newWatchingRouter(f, newByText, roomy)
		hold := func(n int) (on [2]int) {
			for range n {
				sel := mustChoose(t, r, "")
				t.Cleanup(sel.Release)
				on[slices.Index(f.replicas, sel.Replica())]++
			}
			return on
		}
		f.fakes[0].down.Store(true)
		time.Sleep(10 * time.Second)
		if on := hold(100); on != [2]int{0, 100} {
			t.Fatalf("%v were sent", on)
		}
		f.fakes[0].down.Store(false)
		for !f.replicas[0].Available() {
			time.Sleep(time.Millisecond)
		}
		if on := hold(40); on[0] < 8 || on[0] > 14 {
			t.Errorf("it got %d of 40 at once; want about a tenth of the other's load", on[0])
		}
		if sel := mustChoose(t, r, "ab"); sel.Replica() != f.replicas[0] {
			t.Error("its rank is lost")
		} else {
			sel.Release()
		}
		time.Sleep(30 * time.Second)
		if on := hold(40); on[0] != 40 {
			t.Errorf("it got %d of 40 after its slow start", on[0])
		}
	})
}

func TestRouterCountsFailuresReportedByTheIngress(t *testing.T) {
	f := newFleet(t, 100, 100)
	r := newWatchingRouter(f, newByText, roomy)
	for _, err := range []error{errors.New("the client has gone"), llmserver.ErrBusy, llmserver.ErrFull} {
		for range failures {
			sel := mustChoose(t, r, "a")
			sel.Fail(err)
			sel.Release()
		}
		if f.out() != "" {
			t.Errorf("%v ejects", err)
		}
	}
	for range failures {
		respond(t, f.replicas[1])
		sel := mustChoose(t, r, "a")
		sel.Fail(llmserver.ErrServerError)
		sel.Release()
	}
	if f.out() != "a" {
		t.Errorf("%q are out", f.out())
	}
}

// If an agent counts the slots, the probe is a wait in its queue, with the slot that it gets.
func TestRouterAgentWaitProbesAnEjectedAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ejected, full := agent.NewTable(failures), agent.NewTable(1)
		in := newIngress(t, Limits{MaxQueued: -1, QueueTimeout: time.Hour}, ejected, full)
		waitSettled()
		eject(t, in.replicas[0])
		waitSettled()
		fill(t, full)
		all := queueUpAtAgents(t, in.Router, "ab", "ab", "ab")
		wantAgentWaits(t, full, 1)
		time.Sleep(ejection)
		wantServed(t, all, 0)
		if now := ejected.Read(); now.Reserved != 1 {
			t.Errorf("%d slots are reserved at the agent for the probe", now.Reserved)
		}
		dispatch(t, all[0])
		all[0].sel.Fail(llmserver.ErrServerError)
		all[0].sel.Release()
		wantServed(t, all, 0)
		if in.replicas[0].State() != "ejected" || in.replicas[0].Ejections() != 1 {
			t.Errorf("it is %s after %d ejections", in.replicas[0].State(), in.replicas[0].Ejections())
		}
		time.Sleep(ejection)
		wantServed(t, all, 0, 1)
		dispatch(t, all[1])
		all[1].sel.Release() // without a byte: inconclusive
		wantServed(t, all, 0, 1)
		time.Sleep(ejection)
		wantServed(t, all, 0, 1, 2)
		dispatch(t, all[2])
		all[2].sel.Release()
		in.close(t)
	})
}
