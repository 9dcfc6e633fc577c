package scenes

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Never is the value of Result.Out and Result.Back if the event was not seen.
const Never time.Duration = -1

// trialGap is the shortest time between two requests to an engine that is out of use: about one a
// second, to see whether it has recovered.
const trialGap = 700 * time.Millisecond

// A Result is what clients and engines noticed of a fault.
type Result struct {
	Fault    Fault
	Requests int // of all clients

	FailedRequests int // that were not streams
	FailedStreams  int
	UnbegunStreams int // of the failed streams, those without an event at the client
	BegunStreams   int // streams that the engine worked on when the fault began
	BrokenStreams  int // streams that arrived at the engine during MidStream, which breaks them after some events

	Out   time.Duration // from the begin of the fault until the engine gets at most about a request a second
	Back  time.Duration // from the end of the fault to the end of the first good response to a later request
	Share float64       // of the requests during the fault, the part that arrived at the engine

	Failures map[string]int // by text
}

// result evaluates a scene.
func (s *scene) result() Result {
	sent := s.sick.sent.list()
	during := between(sent, s.begin, s.end)
	r := Result{Fault: s.fault, Requests: len(s.responses), BegunStreams: s.begun, Back: Never, Failures: map[string]int{}}
	r.Out = outAfter(during, s.begin, s.end)
	after := map[int]bool{} // IDs of the requests that arrived after the fault
	for _, a := range between(sent, s.end, time.Now()) {
		after[a.id] = true
	}
	asked := 0
	for _, response := range s.responses {
		if !response.Sent.Before(s.begin) && response.Sent.Before(s.end) {
			asked++
		}
		if response.Failure != "" {
			r.count(response)
		} else if took := response.Ended.Sub(s.end); response.Engine == s.sick.name && after[response.ID] && (r.Back == Never || took < r.Back) {
			r.Back = took
		}
	}
	if asked > 0 {
		r.Share = float64(len(during)) / float64(asked)
	}
	for _, a := range during {
		if s.fault == MidStream && a.stream {
			r.BrokenStreams++
		}
	}
	return r
}

// count counts a failed response.
func (r *Result) count(response Response) {
	if response.Stream {
		r.FailedStreams++
		r.Failures["stream: "+response.Failure]++
		if !response.Begun {
			r.UnbegunStreams++
		}
		return
	}
	r.FailedRequests++
	r.Failures[response.Failure]++
}

// outAfter returns the time from begin of the last request that came sooner after the one before
// than a trial would. It is Never if such requests came until the end.
func outAfter(during []arrival, begin, end time.Time) (out time.Duration) {
	for i := 1; i < len(during); i++ {
		if during[i].at.Sub(during[i-1].at) < trialGap {
			out = during[i].at.Sub(begin)
		}
	}
	if end.Sub(begin)-out < time.Second {
		return Never
	}
	return out
}

// The goals that a good router reaches for each fault.
const (
	maxFailedRequests = 3
	maxOut            = 2 * time.Second
	maxOutSilent      = 10 * time.Second // only time reveals silence
	maxBack           = 2 * time.Second
	maxBackKilled     = time.Second
)

// Missed returns the goals that were missed, a sentence each. slack multiplies the times: above 1
// on a machine that is busy otherwise.
//
// A stream that has begun at the client cannot be repeated, so those that the engine worked on when
// the fault began may fail, and with MidStream also those that begin until the engine is out of use
// and later as trials.
func (r Result) Missed(slack float64) (missed []string) {
	miss := func(format string, args ...any) { missed = append(missed, fmt.Sprintf(format, args...)) }
	allowed, streams := maxFailedRequests, r.BegunStreams+r.BrokenStreams
	if r.Fault == Slow {
		allowed, streams = 0, 0
	}
	if r.FailedRequests > allowed {
		miss("%d requests failed, want at most %d", r.FailedRequests, allowed)
	}
	if r.FailedStreams > streams {
		miss("%d streams failed, want at most %d", r.FailedStreams, streams)
	}
	if r.Fault == Slow {
		return missed
	}
	times := func(what string, got, limit time.Duration) {
		if limit = time.Duration(float64(limit) * slack); got == Never {
			miss("the engine was never %s", what)
		} else if got > limit {
			miss("the engine was %s after %v, want at most %v", what, got.Round(10*time.Millisecond), limit)
		}
	}
	out, back := maxOut, maxBack
	if r.Fault.silent() {
		out = maxOutSilent
	}
	if r.Fault == Killed {
		back = maxBackKilled
	}
	times("out of use", r.Out, out)
	times("used again", r.Back, back)
	return missed
}

// String returns the result in one line.
func (r Result) String() string {
	text := fmt.Sprintf("%d requests; failed: %d of those not streamed, %d streams (%d without an event), %d streams in progress at the fault; out of use after %s s, used again after %s s, share %.0f %%",
		r.Requests, r.FailedRequests, r.FailedStreams, r.UnbegunStreams, r.BegunStreams, seconds(r.Out), seconds(r.Back), 100*r.Share)
	for _, failure := range slices.Sorted(maps.Keys(r.Failures)) {
		text += fmt.Sprintf("; %d × %s", r.Failures[failure], failure)
	}
	return text
}
