package llmserver

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestSlotAbandonedCountsOnlySilenceWhileSiblingsRespond(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(silent, sibling *Replica)
		wait      time.Duration
		ejected   bool
	}{
		"a sibling responds":         {func(_, sibling *Replica) { sendResponse(t, sibling) }, 2 * time.Second, true},
		"it is given up too soon":    {func(_, sibling *Replica) { sendResponse(t, sibling) }, 2*time.Second - 1, false},
		"no replica responds":        {func(_, _ *Replica) {}, time.Hour, false},
		"it responds to others":      {func(silent, sibling *Replica) { sendResponse(t, silent); sendResponse(t, sibling) }, time.Minute, false},
		"a sibling sends a header":   {func(_, sibling *Replica) { sendHeader(t, sibling) }, time.Minute, false},
		"it sends a header, no more": {func(silent, sibling *Replica) { sendHeader(t, silent); sendResponse(t, sibling) }, 2 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				silent, _ := newTestReplica(1000)
				sibling, _ := newTestReplica(1000)
				CompareReplicas([]*Replica{silent, sibling})
				sendResponse(t, sibling) // earlier, so it does not count
				time.Sleep(time.Second)
				for range minFailures {
					s := mustStart(t, silent)
					s.sentAt.Store(int64(monotonic()))
					s.readsAtSend = silent.health.bodyReads.Load()
					time.Sleep(time.Second)
					c.meanwhile(silent, sibling)
					time.Sleep(c.wait - time.Second)
					s.Abandoned()
					s.Abandoned() // counts once
					s.Release()
				}
				if _, ejected := silent.Ejected(); ejected != c.ejected {
					t.Errorf("ejected: %t", ejected)
				}
				if silent.Ejections() > 1 {
					t.Errorf("%d ejections", silent.Ejections())
				}
			})
		})
	}
}

func TestSlotAbandonedConsidersBytesOfOtherStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, _ := newTestReplica(1000)
		sibling, _ := newTestReplica(1000)
		CompareReplicas([]*Replica{busy, sibling})
		stream := mustStart(t, busy)
		resp := &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(strings.Repeat("x", 100)))}
		stream.stream = true
		busy.observeBody(stream, resp)
		for range 2 * minFailures {
			s := mustStart(t, busy)
			s.sentAt.Store(int64(monotonic()))
			s.readsAtSend = busy.health.bodyReads.Load()
			time.Sleep(time.Minute)
			resp.Body.Read(make([]byte, 1))
			sendResponse(t, sibling)
			s.Abandoned()
			s.Release()
		}
		if !busy.Available() {
			t.Error("a busy replica is ejected")
		}
	})
}

// A client that abandons many requests at once shows one silence, not many.
func TestSlotAbandonedCountsOneSilenceOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent, _ := newTestReplica(1000)
		sibling, _ := newTestReplica(1000)
		CompareReplicas([]*Replica{silent, sibling})
		var all []*Slot
		for range 4 * minFailures {
			s := mustStart(t, silent)
			s.sentAt.Store(int64(monotonic()))
			all = append(all, s)
		}
		time.Sleep(time.Minute)
		sendResponse(t, sibling)
		for _, s := range all {
			s.Abandoned()
			s.Release()
		}
		if _, ejected := silent.Ejected(); ejected {
			t.Error("one client has ejected the replica")
		}
	})
}

// sendHeader makes a replica send the header of a response and no byte of its body.
func sendHeader(t *testing.T, r *Replica) (*Slot, *http.Response) {
	t.Helper()
	s := mustStart(t, r)
	resp, err := r.Do(&http.Request{}, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Release)
	return s, resp
}

// sendResponse makes a replica begin a response.
func sendResponse(t *testing.T, r *Replica) {
	t.Helper()
	s, resp := sendHeader(t, r)
	defer s.body.ReadCloser.Close()
	s.body.ReadCloser = io.NopCloser(strings.NewReader("x"))
	resp.Body.Read(make([]byte, 1))
	s.Release()
}

// mustStart returns a running slot.
func mustStart(t *testing.T, r *Replica) *Slot {
	t.Helper()
	s := mustReserve(t, r)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// A client that disconnects before its request was sent has not waited for the replica.
func TestSlotAbandonedBeforeSendIsNoFailure(t *testing.T) {
	silent, _ := newTestReplica(1000)
	sibling, _ := newTestReplica(1000)
	CompareReplicas([]*Replica{silent, sibling})
	sibling.Do(&http.Request{}, mustStart(t, sibling))
	for range 2 * minFailures {
		s := mustStart(t, silent)
		s.Abandoned()
		s.Release()
	}
	if !silent.Available() {
		t.Error("it is ejected, though nothing was sent to it")
	}
}
