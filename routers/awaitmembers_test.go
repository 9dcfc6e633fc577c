package routers

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
	"berth/llmserver/agent"
)

// awaiting limits are those of a model whose replicas come from a source.
var awaiting = Limits{MaxQueued: 2, QueueTimeout: time.Minute, AwaitMembers: true}

func TestRouterAwaitMembersServesWaitersInOrderOnceAReplicaAppears(t *testing.T) {
	for _, c := range conforming {
		t.Run(c.class, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				build, err := Lookup(c.class, c.kwargs)
				if err != nil {
					t.Fatal(err)
				}
				f := newFleet(t, 1)
				r := New(nil, build, awaiting, Hooks{})
				all := queueUp(t, r, "", "")
				r.Refresh()
				r.Update(nil, build, awaiting) // another empty set
				synctest.Wait()
				if got := served(all); len(got) != 0 || r.QueueLength() != 2 {
					t.Fatalf("%v have ended, %d wait", got, r.QueueLength())
				}
				r.Update(f.replicas, build, awaiting)
				<-all[0].done
				if all[0].err != nil {
					t.Fatal(all[0].err)
				}
				serve(t, all[0].sel)
				<-all[1].done
				serve(t, all[1].sel)
				serve(t, mustChoose(t, r, ""))
				f.wantIdle(t)
			})
		})
	}
}

func TestRouterAwaitMembersIsBoundedByTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		f.replicas[0].Drain() // a replica that is draining is none
		for _, members := range [][]*llmserver.Replica{nil, f.replicas} {
			r := New(members, newByText, awaiting, Hooks{})
			began := time.Now()
			all := queueUp(t, r, "", "")
			unavailable := func(err error, after time.Duration) {
				t.Helper()
				if _, ok := errors.AsType[*UnavailableError](err); !ok || time.Since(began) != after {
					t.Errorf("got %v after %v; want that no replica is available after %v", err, time.Since(began), after)
				}
			}
			_, err := r.Choose(t.Context(), new(Payload))
			unavailable(err, 0) // the queue is full
			if members == nil && !strings.Contains(err.Error(), "there is no replica") {
				t.Errorf("the error is %q", err)
			}
			<-all[0].done
			<-all[1].done
			unavailable(all[0].err, time.Minute)
			unavailable(all[1].err, time.Minute)

			began = time.Now()
			limits := awaiting
			limits.MaxQueued = 0
			r.Update(members, newByText, limits)
			_, err = r.Choose(t.Context(), new(Payload))
			unavailable(err, 0)
			r.Update(members, newByText, roomy) // without a source
			_, err = r.Choose(t.Context(), new(Payload))
			unavailable(err, 0)
			_, err = r.Choose(t.Context(), &Payload{PinnedTo: f.replicas[0]})
			unavailable(err, 0)
		}
	})
}

// All replicas of a set may drain before the first new one is ready, and leave.
func TestRouterAwaitMembersKeepsItsQueueWhileReplicasAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, next := newFleet(t, 1), newFleet(t, 1)
		r := New(old.replicas, newByText, awaiting, Hooks{})
		for _, m := range []*llmserver.Replica{old.replicas[0], next.replicas[0]} {
			m.OnChange(r.Refresh)
		}
		holder := mustChoose(t, r, "")
		all := queueUp(t, r, "", "")
		old.setDraining(t, 0, true)
		serve(t, holder)
		r.Update(nil, newByText, awaiting)
		synctest.Wait()
		if got := served(all); len(got) != 0 {
			t.Fatalf("%v have ended: %v", got, all[got[0]].err)
		}
		next.setDraining(t, 0, true)
		r.Update(next.replicas, newByText, awaiting)
		synctest.Wait()
		if got := served(all); len(got) != 0 {
			t.Fatalf("%v were served by a draining replica", got)
		}
		next.setDraining(t, 0, false)
		for _, q := range all {
			<-q.done
			if q.err != nil {
				t.Fatal(q.err)
			}
			serve(t, q.sel)
		}
		old.wantIdle(t)
		next.wantIdle(t)
	})
}

// A replica whose agent counts the slots is asked for one as soon as it appears.
func TestRouterAwaitMembersWaitsForAReplicaWithAnAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newIngress(t, awaiting, agent.NewTable(1))
		defer in.close(t)
		members := in.Members()
		in.Update(nil, newByText, awaiting)
		all := queueUpAtAgents(t, in.Router, "", "")
		in.Update(members, newByText, awaiting)
		waitSettled()
		wantServed(t, all, 0)
		serve(t, all[0].sel)
		waitSettled()
		wantServed(t, all, 0, 1)
		serve(t, all[1].sel)
	})
}
