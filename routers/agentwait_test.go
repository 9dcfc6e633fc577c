package routers

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
	"berth/llmserver/agent"
)

func TestRouterAgentWaitIsOnePerIngress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := agent.NewTable(2)
		in := newIngress(t, roomy, table)
		defer in.close(t)
		runs := fill(t, table)
		all := queueUpAtAgents(t, in.Router, "", "", "", "")
		wantAgentWaits(t, table, 1)
		runs[0].Finish()
		wantServed(t, all, 0)
		wantAgentWaits(t, table, 1)
		runs[1].Finish()
		wantServed(t, all, 0, 1)
		serve(t, all[0].sel)
		serve(t, all[1].sel)
		wantServed(t, all, 0, 1, 2, 3)
		wantAgentWaits(t, table, 0)
		serve(t, all[2].sel)
		serve(t, all[3].sel)
	})
}

func TestRouterAgentWaitEndsWithTheLastWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := agent.NewTable(1)
		in := newIngress(t, roomy, table)
		defer in.close(t)
		runs := fill(t, table)
		all := queueUpAtAgents(t, in.Router, "", "")
		wantAgentWaits(t, table, 1)
		all[0].cancel(context.Canceled)
		wantAgentWaits(t, table, 1)
		all[1].cancel(context.Canceled)
		wantAgentWaits(t, table, 0)
		runs[0].Finish()
		if r := table.Read(); r.Ongoing != 0 || r.Totals.Reserved != 0 {
			t.Errorf("nobody waits, and the agent has %+v", r)
		}
		if u := in.replicas[0].Usage(); u.Ongoing() != 0 {
			t.Errorf("nobody waits, and %+v", u)
		}
	})
}

// Whoever lines up while a place is being given up is not forgotten.
func TestRouterAgentWaitRestartsForARequestThatComesAsItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := agent.NewTable(1)
		in := newIngress(t, roomy, table)
		defer in.close(t)
		in.backends[0].dying = time.Second
		runs := fill(t, table)
		first := queueUpAtAgents(t, in.Router, "")[0]
		wantAgentWaits(t, table, 1)
		first.cancel(context.Canceled)
		wantAgentWaits(t, table, 0)
		all := queueUpAtAgents(t, in.Router, "")
		time.Sleep(time.Second)
		wantAgentWaits(t, table, 1)
		runs[0].Finish()
		wantServed(t, all, 0)
		serve(t, all[0].sel)
	})
}

// Those who wait may by then want other agents alone.
func TestRouterAgentWaitReturnsASurplusSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := agent.NewTable(1), agent.NewTable(1)
		in := newIngress(t, roomy, a, b)
		defer in.close(t)
		onA, onB := fill(t, a), fill(t, b)
		all := queueUpAtAgents(t, in.Router, "a", "b")
		all[0].cancel(context.Canceled)
		waitSettled()
		onA[0].Finish()
		wantAgentWaits(t, a, 0)
		if r := a.Read(); r.Ongoing != 0 || in.replicas[0].Usage().Ongoing() != 0 {
			t.Errorf("nobody wants that agent; there it is %+v, here %+v", r, in.replicas[0].Usage())
		}
		onB[0].Finish()
		wantServed(t, all, 1)
		serve(t, all[1].sel)
	})
}

func TestRouterAgentWaitDeliversToTheBestWaiterOfTheMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := agent.NewTable(1), agent.NewTable(1)
		in := newIngress(t, roomy, a, b)
		defer in.close(t)
		onA, onB := fill(t, a), fill(t, b)
		all := queueUpAtAgents(t, in.Router, "ab", "ba", "ba")
		wantAgentWaits(t, a, 1)
		wantAgentWaits(t, b, 1)
		onB[0].Finish()
		wantServed(t, all, 1)
		onA[0].Finish()
		wantServed(t, all, 0, 1)
		if got := all[0].sel.Replica().ID() + all[1].sel.Replica().ID(); got != "ab" {
			t.Errorf("they were served by %s", got)
		}
		serve(t, all[0].sel)
		wantServed(t, all, 0, 1, 2)
		serve(t, all[1].sel)
		serve(t, all[2].sel)
	})
}

// An agent that refuses at once what should wait must not be asked in a tight loop.
func TestRouterAgentWaitPausesAfterARefusal(t *testing.T) {
	for name, err := range map[string]error{"full": llmserver.ErrFull, "unknown token": llmserver.ErrToken} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := agent.NewTable(1)
				in := newIngress(t, roomy, table)
				defer in.close(t)
				runs := fill(t, table)
				in.backends[0].refusal.Store(&llmserver.ErrFull)
				all := queueUpAtAgents(t, in.Router, "")
				in.backends[0].refusal.Store(&err)
				before := in.backends[0].asked.Load()
				time.Sleep(10 * time.Second)
				if n := in.backends[0].asked.Load() - before; n < 60 || n > 210 {
					t.Errorf("asked %d times in 10 s; want about one in 100 ms", n)
				}
				in.backends[0].refusal.Store(nil)
				runs[0].Finish()
				time.Sleep(2 * agentWaitPause)
				wantServed(t, all, 0)
				serve(t, all[0].sel)
			})
		})
	}
}

func TestRouterAgentWaitOfADeadAgentLeavesTheQueueToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := agent.NewTable(1), agent.NewTable(1)
		in := newIngress(t, roomy, a, b)
		defer in.close(t)
		onA, onB := fill(t, a), fill(t, b)
		all := queueUpAtAgents(t, in.Router, "ab", "ab", "a")
		wantAgentWaits(t, a, 1)
		in.backends[0].fault.Store(&llmserver.ErrBroken)
		onA[0].Finish() // granted, but nobody hears of it
		waitSettled()
		if r := a.Read(); r.Ongoing != 0 || r.Released != 1 {
			t.Errorf("a reply was lost, and %+v", r)
		}
		if all[2].returned() {
			t.Errorf("who could use that agent alone waits no longer: %v", all[2].err)
		}
		asked := in.backends[0].asked.Load()
		onB[0].Finish()
		wantServed(t, all, 0)
		dispatch(t, all[0])
		time.Sleep(time.Minute / 2)
		if n := in.backends[0].asked.Load(); n != asked {
			t.Errorf("an agent that is down was asked %d times", n-asked)
		}
		in.backends[0].fault.Store(nil) // a probe finds it, and that it has room
		<-all[1].done
		dispatch(t, all[1])
		all[0].sel.Release()
		all[1].sel.Release()
		<-all[2].done
		serve(t, all[2].sel)
	})
}

func TestRouterAgentWaitEndsWhenTheAgentDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := agent.NewTable(1), agent.NewTable(1)
		in := newIngress(t, roomy, a, b)
		defer in.close(t)
		onA, onB := fill(t, a), fill(t, b)
		all := queueUpAtAgents(t, in.Router, "", "")
		wantAgentWaits(t, a, 1)
		a.Drain()
		wantAgentWaits(t, a, 0)
		asked := in.backends[0].asked.Load()
		onA[0].Finish()
		<-a.Drained()
		time.Sleep(30 * time.Second)
		if n := in.backends[0].asked.Load(); n != asked {
			t.Errorf("a draining agent was asked %d times", n-asked)
		}
		onB[0].Finish()
		wantServed(t, all, 0)
		serve(t, all[0].sel)
		wantServed(t, all, 0, 1)
		serve(t, all[1].sel)
	})
}

func TestRouterAgentWaitEndsWhenTheReplicaLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := agent.NewTable(1), agent.NewTable(1)
		in := newIngress(t, roomy, a, b)
		defer in.close(t)
		onA, onB := fill(t, a), fill(t, b)
		all := queueUpAtAgents(t, in.Router, "", "")
		wantAgentWaits(t, a, 1)
		in.Update(in.replicas[1:], newByText, roomy)
		wantAgentWaits(t, a, 0)
		wantAgentWaits(t, b, 1)
		onB[0].Finish()
		wantServed(t, all, 0)
		in.Update(in.replicas, newByText, roomy) // and one that comes is asked
		wantAgentWaits(t, a, 1)
		onA[0].Finish()
		wantServed(t, all, 0, 1)
		serve(t, all[0].sel)
		serve(t, all[1].sel)
	})
}

func TestRouterAgentWaitEndsWithClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := agent.NewTable(1)
		in := newIngress(t, roomy, table)
		defer in.close(t)
		in.backends[0].dying = time.Second
		fill(t, table)
		all := queueUpAtAgents(t, in.Router, "", "")
		wantAgentWaits(t, table, 1)
		began := time.Now()
		in.Close()
		if took := time.Since(began); took != time.Second || len(in.agentWaits) != 0 {
			t.Errorf("it took %v, and %d still seek; want it to wait for the last", took, len(in.agentWaits))
		}
		synctest.Wait()
		for _, q := range all {
			if q.err != ErrClosed {
				t.Errorf("who waited got %v", q.err)
			}
		}
	})
}

func TestRouterAgentWaitEndsAtTheQueueTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := agent.NewTable(1)
		in := newIngress(t, Limits{MaxQueued: -1, QueueTimeout: 100 * time.Second}, table)
		defer in.close(t)
		fill(t, table)
		q := startChoose(t, in.Router, "")
		<-q.done
		if q.err != ErrQueueTimeout || q.took < 100*time.Second || q.took > 101*time.Second {
			t.Errorf("%v after %v", q.err, q.took)
		}
		wantAgentWaits(t, table, 0)
	})
}

func TestRouterAgentWaitReportsItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := agent.NewTable(1)
		in := newIngress(t, roomy, table)
		in.Close()
		var told []string
		in.Router = New(in.replicas, newByText, roomy, Hooks{AgentWaitEnded: func(replica string, wanted bool, err error) {
			told = append(told, fmt.Sprintf("%s %t %v", replica, wanted, err))
		}})
		in.replicas[0].OnChange(in.Refresh)
		runs := fill(t, table)
		all := queueUpAtAgents(t, in.Router, "a")
		runs[0].Finish()
		wantServed(t, all, 0)
		dispatch(t, all[0])
		all[0].sel.Release()
		runs = fill(t, table)
		queueUpAtAgents(t, in.Router, "a")[0].cancel(nil)
		waitSettled()
		if want := []string{"a true <nil>", "a false context canceled"}; !slices.Equal(told, want) {
			t.Errorf("told %q; want %q", told, want)
		}
		runs[0].Finish()
		in.close(t)
	})
}
