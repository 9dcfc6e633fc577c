package routers

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
)

// lastResort returns a fleet of a, which is down, b, which is ejected, and c, which is free, and the order in which
// they are asked for slots from now on. Each call may fail by the function that is set.
func lastResort(t *testing.T) (f *fleet, r *Router, asked *string, fail *func(id string) error) {
	f = newFleet(t, 8, 8, 8)
	r = newWatchingRouter(f, newByText, roomy)
	down, err := f.replicas[0].TryReserve("victim", 0)
	if err != nil {
		t.Fatal(err)
	}
	down.ReportFailure(llmserver.ErrNoConnection)
	down.Release()
	eject(t, f.replicas[1])
	if f.out() != "ab" {
		t.Fatalf("%s are not available", f.out())
	}
	asked, fail = new(string), new(func(string) error)
	for i, fake := range f.fakes {
		id := f.replicas[i].ID()
		fake.faults = func(op string) error {
			if op != "reserve" {
				return nil
			}
			*asked += id
			if *fail == nil {
				return nil
			}
			return (*fail)(id)
		}
	}
	return f, r, asked, fail
}

func TestRouterLastResortPrefersReplicasThatAreUp(t *testing.T) {
	f, r, asked, _ := lastResort(t)
	sel := mustChoose(t, r, "", f.replicas[2])
	if *asked != "b" || sel.Replica() != f.replicas[1] {
		t.Errorf("%s were asked; want b alone, which is ejected, and not a, which is down", *asked)
	}
	if sel.Rank() != 2 {
		t.Errorf("its rank is %d; want 2, behind the one tier of the ranking", sel.Rank())
	}
	serve(t, sel)
}

func TestRouterLastResortIsTriedWhileOthersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		r := newWatchingRouter(f, newByText, roomy)
		holder := mustChoose(t, r, "a")
		queued := queueUp(t, r, "a")
		holder.Fail(llmserver.ErrNoConnection)
		serve(t, holder)
		if got := served(queued); got != nil || r.QueueLength() != 1 {
			t.Fatalf("%v were served by a replica that is down", got)
		}
		sel, err := r.Choose(t.Context(), new(Payload)) // which finds that it can be reached
		if err != nil {
			t.Fatalf("Choose = %v; want the replica asked, as there is no other", err)
		}
		serve(t, sel)
		for _, q := range queued {
			q.cancel(nil)
			<-q.done
		}
	})
}

func TestRouterLastResortEndsWithOwnExhaustion(t *testing.T) {
	f, r, asked, fail := lastResort(t)
	*fail = func(string) error { return llmserver.ErrExhausted }
	_, err := r.Choose(t.Context(), new(Payload), f.replicas[2])
	if !errors.Is(err, llmserver.ErrExhausted) || *asked != "b" {
		t.Errorf("Choose = %v after %q were asked; want ErrExhausted after one", err, *asked)
	}
	f.wantIdle(t)
}

func TestRouterLastResortEndsWithADisconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r, asked, fail := lastResort(t)
		*fail = func(string) error {
			time.Sleep(time.Second)
			return llmserver.ErrBroken
		}
		q := startChoose(t, r, "", f.replicas[2])
		synctest.Wait()
		gone := errors.New("the client is gone")
		q.cancel(gone)
		<-q.done
		if q.err != gone || *asked != "b" {
			t.Errorf("Choose = %v after %q were asked; want its cause after one", q.err, *asked)
		}
		f.wantIdle(t)
	})
}
