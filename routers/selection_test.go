package routers

import (
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"berth/llmserver"
)

func TestSelectionIsDispatchedOnce(t *testing.T) {
	f := newFleet(t, 1)
	r := New(f.replicas, newByText, roomy, Hooks{})
	sel := mustChoose(t, r, "")
	var sent, refused atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			switch _, err := sel.Dispatch(&http.Request{}); err {
			case nil:
				sent.Add(1)
			case ErrDispatched:
				refused.Add(1)
			}
		})
	}
	all.Wait()
	if sent.Load() != 1 || refused.Load() != 7 || f.fakes[0].requests != 1 {
		t.Errorf("%d sent, %d refused, %d arrived; want 1, 7, 1", sent.Load(), refused.Load(), f.fakes[0].requests)
	}
	sel.Release()
	if _, err := sel.Dispatch(&http.Request{}); err != ErrDispatched {
		t.Errorf("Dispatch after Release = %v", err)
	}
	f.wantIdle(t)
}

func TestSelectionIsNotDispatchedToAReplicaThatLeft(t *testing.T) {
	f := newFleet(t, 1)
	var outcomes []Outcome
	r := New(f.replicas, newByText, roomy, Hooks{Routed: func(*Payload, string) func(Outcome) {
		t.Error("it was routed")
		return nil
	}})
	sel := mustChoose(t, r, "")
	sel.settled = func(o Outcome) { outcomes = append(outcomes, o) }
	f.set(t)
	if _, err := sel.Dispatch(&http.Request{}); !errors.Is(err, llmserver.ErrGone) {
		t.Errorf("Dispatch = %v; want ErrGone", err)
	}
	sel.Release()
	if len(outcomes) != 1 || outcomes[0].Dispatched || !errors.Is(outcomes[0].Err, llmserver.ErrGone) {
		t.Errorf("the policy was given %+v", outcomes)
	}
	if f.fakes[0].requests != 0 {
		t.Error("it was sent")
	}
}

// A request without a response was dispatched all the same: its slot must not be taken for unused.
func TestSelectionOutcomeOfABrokenRequestIsDispatched(t *testing.T) {
	f := newFleet(t, 1)
	var outcomes []Outcome
	r := New(f.replicas, newByText, roomy, Hooks{Released: func(_ *Payload, _ string, o Outcome) { outcomes = append(outcomes, o) }})
	sel := mustChoose(t, r, "")
	f.fakes[0].faults = func(string) error { return llmserver.ErrBroken }
	if _, err := sel.Dispatch(&http.Request{}); !errors.Is(err, llmserver.ErrBroken) {
		t.Errorf("Dispatch = %v; want ErrBroken", err)
	}
	sel.Release()
	if len(outcomes) != 1 || !outcomes[0].Dispatched || outcomes[0].Served || !errors.Is(outcomes[0].Err, llmserver.ErrBroken) {
		t.Errorf("the outcomes are %+v", outcomes)
	}
}

// journal records all callbacks of a router, in order.
type journal struct {
	*byText
	lines []string
}

func (j *journal) write(what string, o Outcome) {
	switch {
	case o.Err != nil:
		what += " failed"
	case o.Served:
		what += " responded"
	case o.Dispatched:
		what += " dispatched"
	}
	j.lines = append(j.lines, what)
}

func (j *journal) Reserved(_ *Payload, r *llmserver.Replica) (int, func(Outcome)) {
	j.lines = append(j.lines, "reserved "+r.ID())
	return 0, func(o Outcome) { j.write("settled", o) }
}

func (j *journal) hooks() Hooks {
	return Hooks{Routed: func(_ *Payload, replica string) func(Outcome) {
		j.lines = append(j.lines, "routed "+replica)
		return func(o Outcome) { j.write("completed", o) }
	}}
}

func TestSelectionReportsEachEndOnce(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		faults error
		live   func(sel *Selection)
		want   []string
	}{
		"responded": {nil, func(sel *Selection) { sel.Dispatch(&http.Request{}) },
			[]string{"reserved a", "routed a", "settled responded", "completed responded"}},
		"released unsent": {nil, func(*Selection) {}, []string{"reserved a", "settled"}},
		"not sent": {llmserver.ErrBroken, func(sel *Selection) { sel.Dispatch(&http.Request{}) },
			[]string{"reserved a", "routed a", "settled failed", "completed failed"}},
		"the stream broke": {nil, func(sel *Selection) { sel.Dispatch(&http.Request{}); sel.Fail(broken) },
			[]string{"reserved a", "routed a", "settled failed", "completed failed"}},
		"dispatched twice": {nil, func(sel *Selection) { sel.Dispatch(&http.Request{}); sel.Dispatch(nil) },
			[]string{"reserved a", "routed a", "settled responded", "completed responded"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 1)
			j := &journal{byText: &byText{members: f.replicas}}
			r := New(f.replicas, func([]*llmserver.Replica, Policy) Policy { return j }, roomy, j.hooks())
			sel := mustChoose(t, r, "")
			f.fakes[0].faults = func(string) error { return c.faults }
			c.live(sel)
			sel.Release()
			sel.Release()
			if !slices.Equal(j.lines, c.want) {
				t.Errorf("recorded %q; want %q", j.lines, c.want)
			}
			f.wantIdle(t)
		})
	}
}

func TestSelectionReleaseMasksNoErrorAndCancelsNothing(t *testing.T) {
	f := newFleet(t, 1)
	r := New(f.replicas, newByText, roomy, Hooks{})
	send := func() (err error) {
		sel := mustChoose(t, r, "")
		defer sel.Release()
		_, err = sel.Dispatch(&http.Request{})
		return err
	}
	f.fakes[0].faults = func(op string) error {
		if op == "do" {
			return llmserver.ErrBroken
		}
		return nil
	}
	if err := send(); !errors.Is(err, llmserver.ErrBroken) {
		t.Errorf("the request ended with %v", err)
	}
	f.wantIdle(t)
	if f.fakes[0].cancels != 0 {
		t.Errorf("%d cancels", f.fakes[0].cancels)
	}
}

func TestSelectionIsLearnedByThePolicyOfTheMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		holder := mustChoose(t, r, "")
		q := startChoose(t, r, "")
		synctest.Wait()
		j := &journal{byText: &byText{members: f.replicas}}
		r.Update(f.replicas, func([]*llmserver.Replica, Policy) Policy { return j }, roomy)
		serve(t, holder)
		<-q.done
		serve(t, q.sel)
		if want := []string{"reserved a", "settled responded"}; !slices.Equal(j.lines, want) {
			t.Errorf("it was recorded %q; want %q", j.lines, want)
		}
	})
}
