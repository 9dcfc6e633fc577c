package routers

import (
	"context"
	"errors"
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

// hookedPolicy is a byText policy that learns and calls a function, unless nil, before it ranks: what another goroutine
// may do at that moment.
type hookedPolicy struct {
	*byText
	before *func(text string)
}

func (p *hookedPolicy) Rank(payload *Payload) iter.Seq[Tier] {
	if f := *p.before; f != nil {
		f(string(payload.Text))
	}
	return p.byText.Rank(payload)
}

func (*hookedPolicy) Reserved(*Payload, *llmserver.Replica) (int, func(Outcome)) { return 0, nil }

// hooked returns the builder of a hookedPolicy.
func hooked(before *func(text string)) Builder {
	return func(members []*llmserver.Replica, _ Policy) Policy {
		return &hookedPolicy{&byText{members: members}, before}
	}
}

// Another request takes the slot that a newcomer of the queue has found; there is one elsewhere.
func TestNewcomerThatLosesASlotGetsOneElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1, 1)
		var before func(text string)
		r := New(f.replicas, hooked(&before), roomy, Hooks{})
		c := mustChoose(t, r, "c")
		older := inLine(t, r, "c") // so that the newcomer does not try without queueing
		var other *llmserver.Slot
		ranked := 0
		before = func(text string) {
			if text != "ab" {
				return
			}
			if ranked++; ranked == 2 { // when it comes, and then for the slot of a
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

// Time in the queue is counted once, also where a slot is refused and the request queues again.
func TestTimeInTheQueueIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		a, b := mustChoose(t, r, "a"), mustChoose(t, r, "b")
		all := inLine(t, r, "")
		time.Sleep(2 * time.Second)
		f.fakes[0].faults = func(string) error { return llmserver.ErrFull }
		a.Release()
		time.Sleep(3 * time.Second)
		serve(t, b)
		if got := served(all); len(got) != 1 || all[0].payload.Waited != 5*time.Second {
			t.Errorf("%v were served; the request counts %v in the queue; want 5 s", got, all[0].payload.Waited)
		}
		endAll(t, all)
		f.wantIdle(t)
	})
}

// A request whose own process has no descriptor left asks nobody else, also when it has queued.
func TestOwnExhaustionEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		a, b := mustChoose(t, r, "a"), mustChoose(t, r, "b")
		q := inLine(t, r, "")[0]
		f.fakes[0].faults = func(string) error { return llmserver.ErrExhausted }
		a.Release()
		synctest.Wait()
		if !q.ended() || !errors.Is(q.err, llmserver.ErrExhausted) {
			t.Errorf("it ended: %t, with %v; want ErrExhausted", q.ended(), q.err)
		}
		serve(t, b)
		endAll(t, []*request{q})
		f.wantIdle(t)
	})
}

// A client that goes while its slot is being confirmed takes no other one.
func TestClientThatGoesDuringTheConfirmationTakesNoOtherSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		a, b := mustChoose(t, r, "a"), mustChoose(t, r, "b")
		q := inLine(t, r, "")[0]
		f.fakes[0].faults = func(op string) error {
			time.Sleep(time.Second)
			return context.Canceled
		}
		a.Release()
		synctest.Wait()
		serve(t, b) // nobody is in the queue at this moment
		asked := false
		f.fakes[1].faults = func(string) error {
			asked = true
			return nil
		}
		gone := errors.New("the client is gone")
		q.cancel(gone)
		<-q.done
		if q.err != gone {
			t.Errorf("it ended with %v", q.err)
		}
		f.wantIdle(t)
		if asked || f.fakes[1].cancels != 0 {
			t.Error("a slot of the other replica was taken for it")
		}
	})
}

// A request that was ranked before a reload finds what the reload has brought.
func TestRequestThatQueuesDuringAReloadIsRankedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		var before func(string)
		r := New(f.replicas[:1], hooked(&before), roomy, Hooks{})
		a := mustChoose(t, r, "a")
		before = func(string) {
			before = nil
			r.Update(f.replicas, newByText, roomy)
		}
		q := begin(t, r, "")
		synctest.Wait()
		if !q.ended() || q.sel == nil || q.sel.Replica() != f.replicas[1] {
			t.Error("the request waits though the new replica has room")
		}
		serve(t, a)
		endAll(t, []*request{q})
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
