package routers

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
	"berth/llmserver/agent"
)

// setDraining describes a replica of the fleet as draining, or no longer. Nothing else tells the
// router.
func (f *fleet) setDraining(t testing.TB, i int, draining bool) {
	t.Helper()
	f.endpoints[i].Draining = draining
	f.set(t, f.endpoints...)
}

func TestRouterDrainSendsWaitersElsewhereUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		for _, m := range f.replicas {
			m.OnChange(r.Refresh)
		}
		onA, onB := mustChoose(t, r, "a"), mustChoose(t, r, "b")
		all := queueUp(t, r, "ab", "ab", "ab")
		f.setDraining(t, 0, true)
		serve(t, onA) // reserved before the drain
		synctest.Wait()
		if got := served(all); len(got) != 0 {
			t.Fatalf("%v were served by a draining replica", got)
		}
		serve(t, onB)
		<-all[0].done
		if all[0].err != nil || all[0].sel.Replica() != f.replicas[1] {
			t.Fatalf("the first waiter has %v; want the other replica", all[0].err)
		}
		f.setDraining(t, 0, false) // hands out the free slot
		<-all[1].done
		if all[1].err != nil || all[1].sel.Replica() != f.replicas[0] {
			t.Fatalf("the second waiter has %v; want the undrained replica", all[1].err)
		}
		serve(t, all[0].sel)
		<-all[2].done
		serve(t, all[1].sel)
		serve(t, all[2].sel)
		f.wantIdle(t)
	})
}

func TestRouterDrainOfTheLastReplicaFailsItsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		f.replicas[0].OnChange(r.Refresh)
		holder := mustChoose(t, r, "")
		all := queueUp(t, r, "")
		f.setDraining(t, 0, true)
		<-all[0].done
		if _, unavailable := errors.AsType[*UnavailableError](all[0].err); !unavailable {
			t.Errorf("the waiter has %v", all[0].err)
		}
		serve(t, holder)
		f.setDraining(t, 0, false)
		serve(t, mustChoose(t, r, ""))
		f.wantIdle(t)
	})
}

// A reservation queued at an agent must not become a request of a drained replica.
func TestRouterDrainEndsTheWaitAtTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := agent.NewTable(1), agent.NewTable(1)
		in := newIngress(t, roomy, a, b)
		defer in.close(t)
		onA, onB := fill(t, a), fill(t, b)
		all := queueUpAtAgents(t, in.Router, "ab", "ab")
		wantAgentWaits(t, a, 1)
		set := func(draining bool) {
			endpoints := []llmserver.Endpoint{in.replicas[0].Endpoint(), in.replicas[1].Endpoint()}
			endpoints[0].Draining = draining
			if _, _, err := in.pool.Set(endpoints); err != nil {
				t.Fatal(err)
			}
		}
		set(true)
		wantAgentWaits(t, a, 0)
		onA[0].Finish()
		time.Sleep(30 * time.Second)
		wantServed(t, all)
		onB[0].Finish()
		wantServed(t, all, 0)
		set(false)
		wantServed(t, all, 0, 1)
		serve(t, all[0].sel)
		serve(t, all[1].sel)
	})
}
