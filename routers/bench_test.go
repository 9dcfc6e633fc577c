package routers

import (
	"fmt"
	"strconv"
	"testing"

	"berth/llmserver"
)

// plain are replicas on a backend whose reservations cost nothing.
func plain(n, limit int) (replicas []*llmserver.Replica) {
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
				r := New(plain(n, 16), build, roomy, Hooks{})
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

// A slot goes from a request to the next one in line, as where a fleet is full.
func BenchmarkHandOver(b *testing.B) {
	for _, inLine := range []int{1, 64, 10_000} {
		b.Run(strconv.Itoa(inLine), func(b *testing.B) {
			b.ReportAllocs()
			r := New(plain(1, 1), newRoundRobin, roomy, Hooks{})
			sel := mustChoose(b, r, "")
			c := &choice{router: r}
			join := func() *waiter {
				c.payload, c.exclude = new(Payload), nil
				c.rank(r.current.Load())
				w, err := c.enqueue()
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
				r.release(slot)
				slot = (<-waiting[i].done).slot
				waiting[i] = join()
			}
			r.Close()
			slot.Start()
			r.release(slot)
		})
	}
}
