package routers

import (
	"slices"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"berth/llmserver"
)

// modelWaiter is a waiter as the naive model of the line sees it.
type modelWaiter struct {
	*waiter
	place, passed int
}

// modelQueue is the line as its laws say it: a slice in order of arrival.
type modelQueue []*modelWaiter

func (m modelQueue) index(w *waiter) int {
	return slices.IndexFunc(m, func(x *modelWaiter) bool { return x.waiter == w })
}

// next is law 10, word by word.
func (m modelQueue) next(i int) *modelWaiter {
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
		var left []*modelWaiter // may line up again
		arrivals := 0
		insert := func(w *modelWaiter) {
			l.push(w.waiter)
			at, _ := slices.BinarySearchFunc(model, w.place, func(x *modelWaiter, place int) int { return x.place - place })
			model = slices.Insert(model, at, w)
		}
		join := func(tiers []uint16) {
			arrivals++
			insert(&modelWaiter{
				waiter: &waiter{payload: new(Payload), tiers: tiers, done: make(chan handover, 1)},
				place:  arrivals,
			})
		}
		tiers := rapid.SliceOfN(rapid.Uint16Range(0, 3), members, members)
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if int(l.length.Load()) != len(model) {
					t.Fatalf("the line's length is %d; want %d", l.length.Load(), len(model))
				}
				w, last := l.head, (*waiter)(nil)
				for i, x := range model {
					if w != x.waiter || w.prev != last {
						t.Fatalf("the line differs at %d of %d", i, len(model))
					}
					if w.skips != x.passed {
						t.Fatalf("the waiter at %d was passed over %d times; want %d", i, w.skips, x.passed)
					}
					w, last = w.next, w
				}
				if w != nil || l.tail != last {
					t.Fatal("the line is longer at its end")
				}
			},
			"join": func(t *rapid.T) { join(tiers.Draw(t, "tiers")) },
			"a crowd joins": func(t *rapid.T) {
				alike := tiers.Draw(t, "tiers")
				for range 40 {
					join(slices.Clone(alike))
				}
			},
			"line up again": func(t *rapid.T) {
				if len(left) == 0 {
					t.Skip("nobody has left")
				}
				i := rapid.IntRange(0, len(left)-1).Draw(t, "who")
				again := &waiter{payload: left[i].payload, tiers: tiers.Draw(t, "tiers"), done: make(chan handover, 1)}
				insert(&modelWaiter{waiter: again, place: left[i].place})
				left = slices.Delete(left, i, i+1)
			},
			"leave": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("nobody waits")
				}
				i := rapid.IntRange(0, len(model)-1).Draw(t, "who")
				if !l.withdraw(model[i].waiter) {
					t.Fatal("a waiter could not leave")
				}
				left, model = append(left, model[i]), slices.Delete(model, i, i+1)
			},
			"give": func(t *rapid.T) {
				i := rapid.IntRange(0, members-1).Draw(t, "replica")
				for range rapid.IntRange(1, 70).Draw(t, "slots") {
					got, want := l.nextFor(nil, i), model.next(i)
					if want == nil {
						if got != nil {
							t.Fatal("a waiter who cannot use the slot would get it")
						}
						return
					}
					if got != want.waiter {
						t.Fatalf("the slot goes to the %dth in line; want the %dth", model.index(got), model.index(want.waiter))
					}
					l.deliver(nil, i, got, nil)
					at := model.index(got)
					for _, older := range model[:at] {
						if older.tiers[i] != 0 {
							older.passed++
						}
					}
					left, model = append(left, want), slices.Delete(model, at, at+1)
					if l.withdraw(got) {
						t.Fatal("a waiter left after it was handed a slot")
					}
				}
			},
		})
	})
}

// lineOf makes a line of n waiters who rank one replica in the given tier.
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
			t.Errorf("the %dth who ranks it best is next: %t; want %t", place, got == eager, wins)
		}
		for range 100 { // who cannot use it does not count
			w := &waiter{payload: new(Payload), tiers: []uint16{0}, done: make(chan handover, 1)}
			w.payload.arrival = 1
			l.push(w)
		}
		if got := l.nextFor(nil, 0); (got == eager) != wins {
			t.Errorf("behind others who do not rank it the %dth is next: %t; want %t", place, got == eager, wins)
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

// outdatedLine returns a line of n waiters who rank replica a, and a last one who ranks replica b, all by an
// earlier generation than the one returned, whose policy counts how often it is asked.
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
		t.Errorf("%d waiters were ranked anew; want %d", n, maxReranks)
	}
	l.deliver(g, 0, l.head, nil)
	l.nextFor(g, 0)
	if n := asked.Load(); n != 2*maxReranks {
		t.Errorf("%d waiters were ranked anew for two slots; want %d", n, 2*maxReranks)
	}
}

func TestRouterQueueFindsATakerBehindOutdatedWaiters(t *testing.T) {
	l, g, _ := outdatedQueue(t, 1000)
	if w := l.nextFor(g, 1); w != l.tail {
		t.Error("the only one who can use the slot does not get it")
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
	l.deliver(g, 0, l.tail, nil) // passes over all who are older, ranked by g or not
	if w := l.nextFor(g, 0); w != overdue {
		t.Error("the slot does not go to the one whose maxSkips is at its end")
	}
}

// A waiter that is ranked anew is ranked by nothing of the ranking before, however many replicas that had.
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
