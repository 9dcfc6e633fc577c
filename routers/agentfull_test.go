package routers

import (
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
	"berth/llmserver/agent"
)

// What the agent says is full is not asked a second time for the same request.
func TestRouterAsksAFullAgentOnceBeforeQueueing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := agent.NewTable(1), agent.NewTable(1)
		in := newIngress(t, roomy, a, b)
		defer in.close(t)
		onA := fill(t, a)
		sel := mustChoose(t, in.Router, "ab")
		if got := sel.Replica().ID(); got != "b" || in.backends[0].asked.Load() != 1 {
			t.Errorf("served by %s after a was asked %d times", got, in.backends[0].asked.Load())
		}
		// The report says that a is full, and for a while that holds.
		q := startChoose(t, in.Router, "ab")
		waitSettled()
		if n := in.backends[0].asked.Load(); n != 2 {
			t.Errorf("a was asked %d times; want once more, to wait", n)
		}
		onA[0].Finish()
		<-q.done
		serve(t, q.sel)
		serve(t, sel)
	})
}

// Also where its report does not show that it is full, because others come and go.
func TestRouterAsksARefusingAgentOncePerPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := agent.NewTable(1)
		in := newIngress(t, roomy, table)
		defer in.close(t)
		in.backends[0].refusal.Store(&llmserver.ErrFull)
		all := queueUpAtAgents(t, in.Router, "")
		if n := in.backends[0].asked.Load(); n != 2 {
			t.Errorf("it was asked %d times; want once to try and once to wait", n)
		}
		in.backends[0].refusal.Store(nil)
		time.Sleep(2 * agentWaitPause)
		wantServed(t, all, 0)
		serve(t, all[0].sel)
	})
}
