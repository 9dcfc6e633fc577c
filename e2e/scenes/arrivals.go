package scenes

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// An arrival is one request at an engine.
type arrival struct {
	id     int // Response.ID; a retry has the ID of its request
	stream bool
	at     time.Time
	ended  time.Time // zero while the engine works on the request
}

// arrivals records the requests of an engine. It is safe for concurrent use.
type arrivals struct {
	mirror io.Writer // if not nil, gets a line per event, for replayLine

	mu  sync.Mutex
	all []arrival
}

// begin records a request and returns the function that records its end.
func (a *arrivals) begin(id int, stream bool) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := len(a.all)
	a.all = append(a.all, arrival{id: id, stream: stream, at: time.Now()})
	if a.mirror != nil {
		fmt.Fprintf(a.mirror, "begin %d %d %t\n", i, id, stream) // lines must be in order: written under the lock
	}
	return func() { a.end(i) }
}

func (a *arrivals) end(i int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i >= len(a.all) {
		return
	}
	a.all[i].ended = time.Now()
	if a.mirror != nil {
		fmt.Fprintf(a.mirror, "end %d\n", i)
	}
}

// reader returns a function that records the lines which one process writes to mirror.
func (a *arrivals) reader() (line func(string)) {
	a.mu.Lock()
	base := len(a.all) // requests of earlier processes at the same address
	a.mu.Unlock()
	return func(text string) {
		var i, id int
		var stream bool
		if _, err := fmt.Sscanf(text, "begin %d %d %t", &i, &id, &stream); err == nil {
			a.begin(id, stream)
		} else if _, err := fmt.Sscanf(text, "end %d", &i); err == nil {
			a.end(base + i)
		}
	}
}

// list returns a copy of all arrivals so far, in order.
func (a *arrivals) list() []arrival {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]arrival(nil), a.all...)
}

// between returns the arrivals from begin on and before end.
func between(all []arrival, begin, end time.Time) (found []arrival) {
	for _, a := range all {
		if !a.at.Before(begin) && a.at.Before(end) {
			found = append(found, a)
		}
	}
	return found
}
