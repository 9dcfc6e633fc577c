package replay

import (
	"cmp"
	"slices"
	"time"
)

// An event happens at one moment of virtual time.
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
	membership                  // the change at index of Options.Events
)

// An eventQueue holds the events to come, ordered by time and then by insertion. The events known
// beforehand, nearly all arrivals, are sorted once; the others are in a small heap.
type eventQueue struct {
	scheduled []event
	heap      []event
	pushed    uint64
}

// schedule adds events before the first push.
func (q *eventQueue) schedule(events []event) {
	slices.SortStableFunc(events, func(x, y event) int { return cmp.Compare(x.at, y.at) })
	q.scheduled = events
}

func (q *eventQueue) empty() bool { return len(q.scheduled) == 0 && len(q.heap) == 0 }

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.order < f.order }

// push adds an event and returns the event's order, which is above 0.
func (q *eventQueue) push(e event) (order uint64) {
	q.pushed++
	e.order = q.pushed
	q.heap = append(q.heap, e)
	i := len(q.heap) - 1
	for i > 0 && e.before(&q.heap[(i-1)/2]) {
		q.heap[i] = q.heap[(i-1)/2]
		i = (i - 1) / 2
	}
	q.heap[i] = e
	return e.order
}

// pop removes and returns the first event; there must be one.
func (q *eventQueue) pop() event {
	if len(q.scheduled) > 0 && (len(q.heap) == 0 || q.scheduled[0].at <= q.heap[0].at) {
		first := q.scheduled[0]
		q.scheduled = q.scheduled[1:]
		return first
	}
	last := len(q.heap) - 1
	first, e := q.heap[0], q.heap[last]
	q.heap = q.heap[:last]
	for i := 0; last > 0; {
		child := 2*i + 1
		if child+1 < last && q.heap[child+1].before(&q.heap[child]) {
			child++
		}
		if child >= last || !q.heap[child].before(&e) {
			q.heap[i] = e
			break
		}
		q.heap[i] = q.heap[child]
		i = child
	}
	return first
}
