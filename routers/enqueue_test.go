package routers

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
	"berth/llmserver/agent"
)

// A slot that its replica does not confirm is free again, and a request that queued meanwhile gets it.
func TestRouterQueueGetsASlotThatWasNotConfirmed(t *testing.T) {
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
				first := startChoose(t, r, "")
				synctest.Wait()
				queued := queueUp(t, r, "")
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
				releaseAll(t, queued)
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
func TestRouterQueueNewcomerThatLosesASlotGetsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1, 1)
		var before func(text string)
		r := New(f.replicas, hooked(&before), roomy, Hooks{})
		c := mustChoose(t, r, "c")
		older := queueUp(t, r, "c") // so that the newcomer does not try without queueing
		var other *llmserver.Slot
		ranked := 0
		before = func(text string) {
			if text != "ab" {
				return
			}
			if ranked++; ranked == 2 { // when it comes, and then for the slot of a
				var err error
				if other, err = f.replicas[0].TryReserve("another", 0); err != nil {
					t.Error(err)
				}
			}
		}
		q := startChoose(t, r, "ab")
		synctest.Wait()
		if other == nil {
			t.Fatal("no slot was taken by another request")
		}
		if !q.returned() || q.sel == nil || q.sel.Replica() != f.replicas[1] {
			t.Error("the newcomer waits though b has room")
		}
		other.Release()
		serve(t, c)
		releaseAll(t, append(older, q))
		f.wantIdle(t)
	})
}

// A request that was ranked before a reload finds what the reload has brought.
func TestRouterQueueRanksAgainARequestThatQueuesDuringAnUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		var before func(string)
		r := New(f.replicas[:1], hooked(&before), roomy, Hooks{})
		a := mustChoose(t, r, "a")
		before = func(string) {
			before = nil
			r.Update(f.replicas, newByText, roomy)
		}
		q := startChoose(t, r, "")
		synctest.Wait()
		if !q.returned() || q.sel == nil || q.sel.Replica() != f.replicas[1] {
			t.Error("the request waits though the new replica has room")
		}
		serve(t, a)
		releaseAll(t, []*request{q})
		f.wantIdle(t)
	})
}

// Where an agent counts the slots, the agent decides whose turn it is: the router hands over none by itself.
func TestRouterAgentWaitLeavesFreedSlotsToTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := agent.NewTable(2)
		in := newIngress(t, roomy, table)
		defer in.close(t)
		var rejected []string
		in.Close()
		in.Router = New(in.replicas, newByText, roomy, Hooks{Rejected: func(_ *Payload, replica string, err error) {
			rejected = append(rejected, replica+" "+err.Error())
		}})
		in.replicas[0].OnChange(in.Refresh)
		other, err := table.Acquire() // by another ingress
		if err != nil {
			t.Fatal(err)
		}
		holder := mustChoose(t, in.Router, "")
		all := queueUp(t, in.Router, "", "")
		wantAgentWaits(t, table, 1)
		asked := in.backends[0].asked.Load()
		serve(t, holder)
		wantServed(t, all, 0)
		dispatch(t, all[0])
		if len(rejected) != 0 {
			t.Errorf("rejected: %q; want the agent asked by the place in its queue alone", rejected)
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
