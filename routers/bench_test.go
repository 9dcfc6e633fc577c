package routers

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"berth/llmserver"
)

// plainReplicas returns replicas on a backend whose reservations cost nothing.
func plainReplicas(n, limit int) (replicas []*llmserver.Replica) {
	for i := range n {
		replicas = append(replicas, llmserver.NewReplica(llmserver.Endpoint{ID: strconv.Itoa(i), Limit: limit}, new(llmserver.HTTP)))
	}
	return replicas
}

func BenchmarkChooseAndRelease(b *testing.B) {
	for _, c := range conforming {
		build, err := Lookup(c.class, c.kwargs)
		if err != nil {
			b.Fatal(err)
		}
		for _, n := range []int{1, 100, 4000} {
			b.Run(fmt.Sprint(c.class, "/", n), func(b *testing.B) {
				b.ReportAllocs()
				r := New(plainReplicas(n, 16), build, roomy, Hooks{})
				p := new(Payload)
				for b.Loop() {
					sel, err := r.Choose(b.Context(), p)
					if err != nil {
						b.Fatal(err)
					}
					sel.slot.Start()
					sel.Release()
				}
			})
		}
	}
}

// A slot goes from a request to the next one in the queue, as in a full fleet.
func BenchmarkHandOver(b *testing.B) {
	for _, inLine := range []int{1, 64, 10_000} {
		b.Run(strconv.Itoa(inLine), func(b *testing.B) {
			b.ReportAllocs()
			r := New(plainReplicas(1, 1), newRoundRobin, roomy, Hooks{})
			sel := mustChoose(b, r, "")
			c := &selector{router: r}
			join := func() *waiter {
				c.payload, c.exclude = new(Payload), nil
				c.useGeneration(r.current.Load())
				w, err := c.enqueue(context.Background())
				if err != nil {
					b.Fatal(err)
				}
				return w
			}
			var waiting []*waiter
			for range inLine {
				waiting = append(waiting, join())
			}
			slot := sel.slot
			for i := 0; b.Loop(); i = (i + 1) % inLine {
				slot.Start()
				r.releaseSlot(slot)
				slot = (<-waiting[i].done).slot
				waiting[i] = join()
			}
			r.Close()
			slot.Start()
			r.releaseSlot(slot)
		})
	}
}

// A replica of a full fleet recovers while requests wait, all ranked before: ns/change is the time
// for which that holds the router's mutex, including the handover of the replica's one slot.
func BenchmarkRefresh(b *testing.B) {
	for _, c := range conforming {
		build, err := Lookup(c.class, c.kwargs)
		if err != nil {
			b.Fatal(err)
		}
		for _, size := range []struct{ replicas, waiting int }{{1000, 1000}, {4000, 5000}} {
			b.Run(fmt.Sprint(c.class, "/", size.replicas, "x", size.waiting), func(b *testing.B) {
				refreshUnderLoad(b, New(plainReplicas(size.replicas, 1), build, roomy, Hooks{}), size.waiting)
			})
		}
	}
}

func refreshUnderLoad(b *testing.B, r *Router, waiting int) {
	var slots []*llmserver.Slot
	for _, m := range r.Members() {
		s, err := m.TryReserve("holder", 0)
		if err != nil {
			b.Fatal(err)
		}
		slots = append(slots, s)
	}
	handed, began := make(chan handover, 1), 0
	join := func() {
		p := &Payload{SessionID: strconv.Itoa(began), Blocks: long(began%100, 20)}
		w, err := r.newSelector(p, nil).enqueue(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		w.done = handed
		began++
	}
	for range waiting {
		join()
	}
	var held time.Duration
	for b.Loop() {
		i := began % len(slots)
		start := time.Now()
		r.Refresh()
		r.releaseSlot(slots[i])
		held += time.Since(start)
		select {
		case h := <-handed:
			slots[i] = h.slot
			join()
		default: // no request wants it
			slots[i], _ = r.Members()[i].TryReserve("holder", 0)
		}
	}
	b.ReportMetric(float64(held.Nanoseconds())/float64(b.N), "ns/change")
}
