package replay

import (
	"cmp"
	"slices"
	"time"
)

// event is something that happens at a moment.
type event struct {
	at    time.Duration
	order uint64
	kind  eventKind
	index int
}

type eventKind uint8

const (
	arrival    eventKind = iota // of the request at index
	stepsEnd                    // of the engine at index
	membership                  // changes as the options' event at index says
)

// agenda is what is to happen, in the order of time and then that in which it was added. What is known beforehand, which is
// nearly all arrivals, is sorted once; the rest is a heap, and a small one.
type agenda struct {
	planned []event
	events  []event
	added   uint64
}

// plan enters events before any is added.
func (a *agenda) plan(events []event) {
	slices.SortStableFunc(events, func(x, y event) int { return cmp.Compare(x.at, y.at) })
	a.planned = events
}

func (a *agenda) empty() bool { return len(a.planned) == 0 && len(a.events) == 0 }

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.order < f.order }

// add enters an event and returns its place in the order, which is above 0.
func (a *agenda) add(e event) (order uint64) {
	a.added++
	e.order = a.added
	a.events = append(a.events, e)
	i := len(a.events) - 1
	for i > 0 && e.before(&a.events[(i-1)/2]) {
		a.events[i] = a.events[(i-1)/2]
		i = (i - 1) / 2
	}
	a.events[i] = e
	return e.order
}

// next takes the event out that happens first; there must be one.
func (a *agenda) next() event {
	if len(a.planned) > 0 && (len(a.events) == 0 || a.planned[0].at <= a.events[0].at) {
		first := a.planned[0]
		a.planned = a.planned[1:]
		return first
	}
	last := len(a.events) - 1
	first, e := a.events[0], a.events[last]
	a.events = a.events[:last]
	for i := 0; last > 0; {
		child := 2*i + 1
		if child+1 < last && a.events[child+1].before(&a.events[child]) {
			child++
		}
		if child >= last || !a.events[child].before(&e) {
			a.events[i] = e
			break
		}
		a.events[i] = a.events[child]
		i = child
	}
	return first
}
