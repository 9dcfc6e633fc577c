package routers

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestRouterWaitingListsTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		onA, onB := mustChoose(t, r, "a"), mustChoose(t, r, "b")
		began := time.Now()
		var all []*request
		for i, text := range []string{"ab", "b", ""} {
			q := &request{payload: Payload{RequestID: string(rune('x' + i)), Text: []byte(text)}, done: make(chan struct{})}
			all = append(all, q)
			go func() {
				defer close(q.done)
				q.sel, q.err = r.Choose(t.Context(), &q.payload)
			}()
			time.Sleep(time.Second)
		}
		want := []Waiting{{"x", began, "a"}, {"y", began.Add(time.Second), "b"}, {"z", began.Add(2 * time.Second), ""}}
		if got := r.Waiting(10); !slices.Equal(got, want) {
			t.Errorf("waiting: %v; want %v", got, want)
		}
		if got := r.Waiting(2); !slices.Equal(got, want[:2]) {
			t.Errorf("the first two waiting: %v; want %v", got, want[:2])
		}
		// A slot that the replica rejects sends the request back; the time goes on.
		f.fakes[0].faults = func(op string) error {
			if op == "reserve" {
				return errReplyLost
			}
			return nil
		}
		serve(t, onA)
		synctest.Wait()
		f.fakes[0].faults = nil
		if got := r.Waiting(10); len(got) != 3 || !got[0].Since.Equal(began) || got[0].Replica != "b" {
			t.Errorf("after a rejected slot: %v", got)
		}
		for _, q := range all {
			serve(t, onB)
			if <-q.done; q.err != nil {
				t.Fatal(q.err)
			}
			onB = q.sel
		}
		serve(t, onB)
		if got := r.Waiting(10); len(got) != 0 {
			t.Errorf("nothing waits, but %v", got)
		}
	})
}
