package replay

import "time"

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

// agenda is what is to happen, a heap by time and then by the order in which it was added.
type agenda struct {
	events []event
	added  uint64
}

func (a *agenda) before(i, j int) bool {
	x, y := &a.events[i], &a.events[j]
	return x.at < y.at || x.at == y.at && x.order < y.order
}

// add enters an event and returns its place in the order, which is above 0.
func (a *agenda) add(e event) (order uint64) {
	a.added++
	e.order = a.added
	a.events = append(a.events, e)
	for i := len(a.events) - 1; i > 0 && a.before(i, (i-1)/2); i = (i - 1) / 2 {
		a.events[i], a.events[(i-1)/2] = a.events[(i-1)/2], a.events[i]
	}
	return e.order
}

// next takes the event out that happens first; there must be one.
func (a *agenda) next() event {
	first, last := a.events[0], len(a.events)-1
	a.events[0] = a.events[last]
	a.events = a.events[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return first
		}
		if child+1 < last && a.before(child+1, child) {
			child++
		}
		if !a.before(child, i) {
			return first
		}
		a.events[i], a.events[child] = a.events[child], a.events[i]
		i = child
	}
}
