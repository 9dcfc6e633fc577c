package routers

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth/llmserver"
)

// modelWaiter is a waiter of the naive model.
type modelWaiter struct {
	*waiter
	place, passed int
	late          bool
}

// modelQueue is a naive model of the queue: a slice in order of arrival.
type modelQueue []*modelWaiter

func (m modelQueue) index(w *waiter) int {
	return slices.IndexFunc(m, func(x *modelWaiter) bool { return x.waiter == w })
}

// next follows the definition: a waiter that is not late, in order of arrival, otherwise a late one,
// the newest first.
func (m modelQueue) next(i int) *modelWaiter {
	var inTime, late modelQueue
	for _, w := range m {
		if w.late {
			late = slices.Insert(late, 0, w)
		} else {
			inTime = append(inTime, w)
		}
	}
	if w := inTime.best(i); w != nil {
		return w
	}
	return late.best(i)
}

// best follows the definition: among the first 64 waiters that rank the replica, the one that ranks
// it best, the first of equals; first of all one that was skipped 64 times.
func (m modelQueue) best(i int) *modelWaiter {
	var can modelQueue
	for _, w := range m {
		if w.tiers[i] != 0 {
			can = append(can, w)
		}
	}
	can = can[:min(len(can), 64)]
	for _, w := range can {
		if w.passed >= 64 {
			return w
		}
	}
	var best *modelWaiter
	for _, w := range can {
		if best == nil || w.tiers[i] < best.tiers[i] {
			best = w
		}
	}
	return best
}

func TestRouterQueueAgreesWithANaiveModel(t *testing.T) {
	const members = 3
	rapid.Check(t, func(t *rapid.T) {
		var l waitQueue
		var model modelQueue
		var left []*modelWaiter // may queue again
		arrivals := 0
		since := func(place int) time.Time { return time.Unix(int64(place), 0) }
		insert := func(w *modelWaiter) {
			l.push(w.waiter)
			at, _ := slices.BinarySearchFunc(model, w.place, func(x *modelWaiter, place int) int { return x.place - place })
			w.late = at < len(model) && model[at].late
			model = slices.Insert(model, at, w)
		}
		join := func(tiers []uint16) {
			arrivals++
			insert(&modelWaiter{
				waiter: &waiter{payload: new(Payload), tiers: tiers, since: since(arrivals), done: make(chan handover, 1)},
				place:  arrivals,
			})
		}
		tiers := rapid.SliceOfN(rapid.Uint16Range(0, 3), members, members)
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if int(l.length.Load()) != len(model) {
					t.Fatalf("the queue's length is %d; want %d", l.length.Load(), len(model))
				}
				w, last := l.head, (*waiter)(nil)
				for i, x := range model {
					if w != x.waiter || w.prev != last {
						t.Fatalf("the queue differs at %d of %d", i, len(model))
					}
					if w.skips != x.passed || w.late != x.late {
						t.Fatalf("the waiter at %d was skipped %d times and is late: %t; want %d, %t", i, w.skips, w.late, x.passed, x.late)
					}
					w, last = w.next, w
				}
				if w != nil || l.tail != last {
					t.Fatal("the queue is longer at its end")
				}
			},
			"push": func(t *rapid.T) { join(tiers.Draw(t, "tiers")) },
			"push many": func(t *rapid.T) {
				alike := tiers.Draw(t, "tiers")
				for range 40 {
					join(slices.Clone(alike))
				}
			},
			"push again": func(t *rapid.T) {
				if len(left) == 0 {
					t.Skip("no waiter was removed")
				}
				i := rapid.IntRange(0, len(left)-1).Draw(t, "waiter")
				again := &waiter{payload: left[i].payload, tiers: tiers.Draw(t, "tiers"), since: left[i].since, done: make(chan handover, 1)}
				insert(&modelWaiter{waiter: again, place: left[i].place})
				left = slices.Delete(left, i, i+1)
			},
			"withdraw": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("no request waits")
				}
				i := rapid.IntRange(0, len(model)-1).Draw(t, "waiter")
				if !l.withdraw(model[i].waiter) {
					t.Fatal("a waiter could not withdraw")
				}
				left, model = append(left, model[i]), slices.Delete(model, i, i+1)
			},
			"order": func(t *rapid.T) {
				l.orderByAge(rapid.Bool().Draw(t, "by age"))
				for _, w := range model {
					w.late = false
				}
			},
			"age out": func(t *rapid.T) {
				before := since(rapid.IntRange(0, arrivals+1).Draw(t, "place"))
				l.ageOut(before)
				for _, w := range model {
					if !l.byAge.Load() || !w.late && !w.since.Before(before) {
						break
					}
					w.late = true
				}
			},
			"deliver": func(t *rapid.T) {
				i := rapid.IntRange(0, members-1).Draw(t, "replica")
				for range rapid.IntRange(1, 70).Draw(t, "slots") {
					got, want := l.nextFor(nil, i), model.next(i)
					if want == nil {
						if got != nil {
							t.Fatal("a waiter that cannot use the slot would get it")
						}
						return
					}
					if got != want.waiter {
						t.Fatalf("the slot goes to the waiter at %d; want %d", model.index(got), model.index(want.waiter))
					}
					l.deliver(nil, i, got, nil)
					at := model.index(got)
					for _, older := range model[:at] {
						if older.tiers[i] != 0 && !older.late && !want.late {
							older.passed++
						}
					}
					left, model = append(left, want), slices.Delete(model, at, at+1)
					if l.withdraw(got) {
						t.Fatal("a waiter withdrew after a slot was delivered to it")
					}
				}
			},
		})
	})
}

// queueOf returns a queue of n waiters that rank one replica in the given tier.
func queueOf(n int, tier uint16) *waitQueue {
	l := new(waitQueue)
	for range n {
		l.push(&waiter{payload: new(Payload), tiers: []uint16{tier}, done: make(chan handover, 1)})
	}
	return l
}

func TestRouterQueueComparesOnlyTheOldestWaiters(t *testing.T) {
	for place, wins := range map[int]bool{63: true, 64: true, 65: false} {
		l := queueOf(place-1, 2)
		eager := &waiter{payload: new(Payload), tiers: []uint16{1}, done: make(chan handover, 1)}
		l.push(eager)
		if got := l.nextFor(nil, 0); (got == eager) != wins || !wins && got != l.head {
			t.Errorf("waiter %d, which ranks it best, is next: %t; want %t", place, got == eager, wins)
		}
		for range 100 { // waiters that cannot use the slot do not count
			w := &waiter{payload: new(Payload), tiers: []uint16{0}, done: make(chan handover, 1)}
			w.payload.arrival = 1
			l.push(w)
		}
		if got := l.nextFor(nil, 0); (got == eager) != wins {
			t.Errorf("behind others that do not rank it, waiter %d is next: %t; want %t", place, got == eager, wins)
		}
	}
}

func TestRouterQueueSkipsAWaiter64TimesAtMost(t *testing.T) {
	l := queueOf(1, 2)
	oldest := l.head
	for n := range 65 {
		eager := &waiter{payload: new(Payload), tiers: []uint16{1}, done: make(chan handover, 1)}
		l.push(eager)
		got := l.nextFor(nil, 0)
		if want := map[bool]*waiter{false: eager, true: oldest}[n == 64]; got != want {
			t.Fatalf("slot %d went to the oldest: %t", n, got == oldest)
		}
		l.deliver(nil, 0, got, nil)
	}
}

// outdatedQueue returns a queue of n waiters that rank replica a, and a last one that ranks replica
// b, all by an earlier generation than the one returned, whose policy counts its rankings.
func outdatedQueue(t *testing.T, n int) (*waitQueue, *generation, *atomic.Int32) {
	f, asked := newFleet(t, 1, 1), new(atomic.Int32)
	g := &generation{members: f.replicas, index: map[*llmserver.Replica]int{f.replicas[0]: 0, f.replicas[1]: 1}}
	g.policy = &byText{members: f.replicas, ranks: asked}
	l, earlier := new(waitQueue), *g
	for i := range n + 1 {
		w := &waiter{payload: &Payload{Text: []byte("a")}, done: make(chan handover, 1)}
		if i == n {
			w.payload.Text = []byte("b")
		}
		w.setRanking(&earlier, earlier.rank(w.payload))
		l.push(w)
	}
	asked.Store(0)
	return l, g, asked
}

func TestRouterQueueReranksFewWaitersPerSlot(t *testing.T) {
	l, g, asked := outdatedQueue(t, 1000)
	if w := l.nextFor(g, 0); w != l.head {
		t.Error("the slot does not go to the oldest")
	}
	if n := asked.Load(); n != maxReranks {
		t.Errorf("%d waiters were ranked again; want %d", n, maxReranks)
	}
	l.deliver(g, 0, l.head, nil)
	l.nextFor(g, 0)
	if n := asked.Load(); n != 2*maxReranks {
		t.Errorf("%d waiters were ranked again for two slots; want %d", n, 2*maxReranks)
	}
}

func TestRouterQueueFindsATakerBehindOutdatedWaiters(t *testing.T) {
	l, g, _ := outdatedQueue(t, 1000)
	if w := l.nextFor(g, 1); w != l.tail {
		t.Error("the only waiter that can use the slot does not get it")
	}
}

func TestRouterQueueReranksAnOverdueWaiter(t *testing.T) {
	l, g, _ := outdatedQueue(t, 50)
	overdue := l.head
	for range 40 {
		overdue = overdue.next
	}
	overdue.skips = maxSkips - 1
	clear(overdue.tiers) // by the earlier generation, in which the replica was down
	l.nextFor(g, 0)
	l.deliver(g, 0, l.tail, nil) // skips all older ones, ranked by g or not
	if w := l.nextFor(g, 0); w != overdue {
		t.Error("the slot does not go to the waiter that was skipped maxSkips times")
	}
}

// A waiter that is ranked again keeps no tier of the ranking before, however many replicas that
// had.
func TestRouterQueueWaiterForgetsItsPreviousRanking(t *testing.T) {
	for n := range 2*sparseRanks + 2 {
		f := newFleet(t, slices.Repeat([]int{1}, 3*sparseRanks)...)
		g := &generation{members: f.replicas, index: make(map[*llmserver.Replica]int)}
		for i, m := range f.replicas {
			g.index[m] = i
		}
		w := new(waiter)
		w.setRanking(g, slices.Values([]Tier{{Replicas: f.replicas[1 : n+1]}}))
		w.setRanking(g, slices.Values([]Tier{{Replicas: f.replicas[:1]}}))
		if i := slices.IndexFunc(w.tiers[1:], func(tier uint16) bool { return tier != 0 }); w.tiers[0] != 1 || i >= 0 {
			t.Errorf("after a ranking of %d replicas and one of another, the tiers are %v", n, w.tiers)
		}
	}
}
