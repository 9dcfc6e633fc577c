package routers

import (
	"context"
	"iter"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
	"berth/llmserver/agent"
)

// A slot that its replica does not confirm is free again, and a request that queued meanwhile gets it.
func TestSlotThatIsNotConfirmedGoesToTheQueue(t *testing.T) {
	for name, err := range map[string]error{"refused": llmserver.ErrFull, "client gone": context.Canceled} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1)
				r := New(f.replicas, newByText, roomy, Hooks{})
				f.fakes[0].faults = func(string) error {
					f.fakes[0].faults = nil
					time.Sleep(time.Second)
					return err
				}
				first := begin(t, r, "")
				synctest.Wait()
				queued := inLine(t, r, "")
				if err == context.Canceled {
					first.cancel(err)
				}
				time.Sleep(2 * time.Second)
				if got := served(queued); len(got) != 1 || queued[0].took != time.Second {
					t.Fatal("the queued request did not get the slot when it was free again")
				}
				if first.sel != nil || first.err == nil {
					t.Errorf("the first request got %v, %v", first.sel, first.err)
				}
				endAll(t, queued)
				f.wantIdle(t)
			})
		})
	}
}

// takenByAnother is a byText policy that learns. The first time that it ranks the text "ab" while armed, it has
// another request take a slot, as one that does not queue may at any moment.
type takenByAnother struct {
	*byText
	take *func()
}

func (p *takenByAnother) Rank(payload *Payload) iter.Seq[Tier] {
	if take := *p.take; take != nil && string(payload.Text) == "ab" {
		*p.take = nil
		take()
	}
	return p.byText.Rank(payload)
}

func (*takenByAnother) Reserved(*Payload, *llmserver.Replica) (int, func(Outcome)) { return 0, nil }

// Another request takes the slot that a newcomer of the queue has found; there is one elsewhere.
func TestNewcomerThatLosesASlotGetsOneElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1, 1)
		var take func()
		r := New(f.replicas, func(members []*llmserver.Replica, _ Policy) Policy {
			return &takenByAnother{&byText{members: members}, &take}
		}, roomy, Hooks{})
		c := mustChoose(t, r, "c")
		older := inLine(t, r, "c") // so that the newcomer does not try without queueing
		var other *llmserver.Slot
		take = func() { // ranked as it comes
			take = func() { // ranked again for the slot of a
				var err error
				if other, err = f.replicas[0].Claim("another", 0); err != nil {
					t.Error(err)
				}
			}
		}
		q := begin(t, r, "ab")
		synctest.Wait()
		if other == nil {
			t.Fatal("no slot was taken by another request")
		}
		if !q.ended() || q.sel == nil || q.sel.Replica() != f.replicas[1] {
			t.Error("the newcomer waits though b has room")
		}
		other.Release()
		serve(t, c)
		endAll(t, append(older, q))
		f.wantIdle(t)
	})
}

// The queue timeout is for all waits of a request together, also when it is chosen for again.
func TestRetryWaitsOnlyTheRestOfTheQueueTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		r := New(f.replicas, newByText, Limits{MaxQueued: -1, QueueTimeout: 10 * time.Second}, Hooks{})
		holder, payload := mustChoose(t, r, ""), new(Payload)
		time.AfterFunc(6*time.Second, func() { serve(t, holder) })
		first, err := r.Choose(t.Context(), payload)
		if err != nil || payload.Waited != 6*time.Second {
			t.Fatalf("the first attempt got %v after %v in the queue", err, payload.Waited)
		}
		serve(t, first)
		holder = mustChoose(t, r, "")
		began := time.Now()
		if _, err := r.Choose(t.Context(), payload); err != ErrWaitOver || time.Since(began) != 4*time.Second {
			t.Errorf("the second attempt got %v after %v; want ErrWaitOver after 4 s", err, time.Since(began))
		}
		if payload.Waited != 10*time.Second {
			t.Errorf("the request waited %v in all; want 10 s", payload.Waited)
		}
		serve(t, holder)
		f.wantIdle(t)
	})
}

// A slot that comes in the moment in which the queue timeout ends is used.
func TestSlotAtTheEndOfTheQueueTimeoutIsUsed(t *testing.T) {
	f := newFleet(t, 1)
	r := New(f.replicas, newByText, roomy, Hooks{})
	over := make(chan struct{})
	close(over)
	for range 64 { // which of the two await sees first is a matter of chance
		holder := mustChoose(t, r, "")
		w, err := r.choice(new(Payload), nil).enqueue()
		if err != nil {
			t.Fatal(err)
		}
		serve(t, holder)
		h := r.await(t.Context(), w, over)
		if h.slot == nil || h.err != nil {
			t.Fatalf("the request got %v instead of its slot", h.err)
		}
		h.slot.Release()
		f.replicas[0].Wait() // until the backend has it back
	}
	f.wantIdle(t)
}

// Where an agent counts the slots, the agent decides whose turn it is: the router hands over none by itself.
func TestFreedSlotOfAnAgentIsTheAgentsToGive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := agent.NewTable(2)
		in := newIngress(t, roomy, table)
		defer in.close(t)
		var rejected []string
		in.Close()
		in.Router = New(in.replicas, newByText, roomy, Hooks{Rejected: func(_ *Payload, replica string, err error) {
			rejected = append(rejected, replica+" "+err.Error())
		}})
		in.replicas[0].Observe(in.Refresh)
		other, err := table.Acquire() // by another ingress
		if err != nil {
			t.Fatal(err)
		}
		holder := mustChoose(t, in.Router, "")
		all := inLine(t, in.Router, "", "")
		wantWaiting(t, table, 1)
		asked := in.backends[0].asked.Load()
		serve(t, holder)
		wantServed(t, all, 0)
		dispatch(t, all[0])
		if len(rejected) != 0 {
			t.Errorf("rejected: %q; want the agent asked by the place in its queue alone", slices.Compact(rejected))
		}
		if n := in.backends[0].asked.Load() - asked; n != 1 {
			t.Errorf("the agent was asked %d times for one slot; want once, for the next place in its queue", n)
		}
		other.Finish()
		wantServed(t, all, 0, 1)
		all[0].sel.Release()
		serve(t, all[1].sel)
	})
}
