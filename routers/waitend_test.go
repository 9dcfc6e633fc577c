package routers

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
)

// The queue timeout bounds all waits of a request together, those of its retries included.
func TestRouterQueueTimeoutIsSharedByRetries(t *testing.T) {
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
		if _, err := r.Choose(t.Context(), payload); err != ErrQueueTimeout || time.Since(began) != 4*time.Second {
			t.Errorf("the second attempt got %v after %v; want ErrQueueTimeout after 4 s", err, time.Since(began))
		}
		if payload.Waited != 10*time.Second {
			t.Errorf("the request waited %v in all; want 10 s", payload.Waited)
		}
		serve(t, holder)
		f.wantIdle(t)
	})
}

// Time in the queue is counted once, also if a slot is refused and the request queues again.
func TestRouterQueueTimeIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		a, b := mustChoose(t, r, "a"), mustChoose(t, r, "b")
		all := queueUp(t, r, "")
		time.Sleep(2 * time.Second)
		f.fakes[0].faults = func(string) error { return llmserver.ErrFull }
		a.Release()
		time.Sleep(3 * time.Second)
		serve(t, b)
		if got := served(all); len(got) != 1 || all[0].payload.Waited != 5*time.Second {
			t.Errorf("%v were served; the request counts %v in the queue; want 5 s", got, all[0].payload.Waited)
		}
		releaseAll(t, all)
		f.wantIdle(t)
	})
}

// A request of a process without descriptors tries no other replica, also after it has queued.
func TestRouterQueueOwnExhaustionEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		a, b := mustChoose(t, r, "a"), mustChoose(t, r, "b")
		q := queueUp(t, r, "")[0]
		f.fakes[0].faults = func(string) error { return llmserver.ErrExhausted }
		a.Release()
		synctest.Wait()
		if !q.returned() || !errors.Is(q.err, llmserver.ErrExhausted) {
			t.Errorf("it ended: %t, with %v; want ErrExhausted", q.returned(), q.err)
		}
		serve(t, b)
		releaseAll(t, []*request{q})
		f.wantIdle(t)
	})
}

// A client that disconnects while its slot is being confirmed takes no other one.
func TestRouterQueueDisconnectDuringConfirmationTakesNoOtherSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		a, b := mustChoose(t, r, "a"), mustChoose(t, r, "b")
		q := queueUp(t, r, "")[0]
		f.fakes[0].faults = func(op string) error {
			time.Sleep(time.Second)
			return context.Canceled
		}
		a.Release()
		synctest.Wait()
		serve(t, b) // the queue is empty at this moment
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

// A slot that arrives at the moment of the timeout is used.
func TestRouterQueueSlotAtTheTimeoutIsUsed(t *testing.T) {
	f := newFleet(t, 1)
	r := New(f.replicas, newByText, roomy, Hooks{})
	over := make(chan struct{})
	close(over)
	for range 64 { // which of the two awaitHandover sees first is random
		holder := mustChoose(t, r, "")
		w, err := r.newSelector(new(Payload), nil).enqueue(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		serve(t, holder)
		h := r.awaitHandover(t.Context(), w, over)
		if h.slot == nil || h.err != nil {
			t.Fatalf("the request got %v instead of its slot", h.err)
		}
		h.slot.Release()
		f.replicas[0].Wait() // until the backend has it back
	}
	f.wantIdle(t)
}

// A slot that arrives after the client has disconnected goes to the next waiter.
func TestRouterQueueSlotOfADisconnectedClientIsPassedOn(t *testing.T) {
	f := newFleet(t, 1)
	r := New(f.replicas, newByText, roomy, Hooks{})
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(context.Canceled)
	enqueue := func(id string) *waiter {
		w, err := r.newSelector(&Payload{RequestID: id}, nil).enqueue(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	for passed := 0; passed < 10; { // which of the two awaitHandover sees first is random
		holder := mustChoose(t, r, "")
		first, second := enqueue("first"), enqueue("second")
		serve(t, holder)
		if h := r.awaitHandover(gone, first, nil); h.slot != nil {
			r.releaseSlot(h.slot)
		} else {
			passed++
		}
		select {
		case h := <-second.done:
			if slots := f.replicas[0].Slots(); len(slots) != 1 || slots[0].Holder != "second" {
				t.Errorf("the replica has %+v; want the slot of the second request", slots)
			}
			h.slot.Release()
			f.replicas[0].Wait() // until the backend has it back
		default:
			t.Fatal("the next in the queue did not get the slot")
		}
	}
	f.wantIdle(t)
}
