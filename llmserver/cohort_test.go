package llmserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// newCohort returns replicas that are compared with each other.
func newCohort(n int) []*Replica {
	members := make([]*Replica, n)
	for i := range members {
		id := string(rune('a' + i))
		members[i] = NewReplica(Endpoint{Model: "m", ID: id, URL: "http://" + id, Limit: 1000}, newFake(1000))
	}
	CompareReplicas(members)
	return members
}

// A prompt is a request with a fingerprint.
type prompt uint64

func (p prompt) Fingerprint() uint64 { return uint64(p) }

// failPrompt fails a request on a replica.
func failPrompt(t *testing.T, r *Replica, p prompt, err error) *Slot {
	t.Helper()
	s, reserveErr := r.ForceReserve("holder")
	if reserveErr != nil {
		t.Fatal(reserveErr)
	}
	defer s.Release()
	s.SetRequest(p, true)
	s.ReportFailure(err)
	return s
}

// serveOK serves a request on a replica.
func serveOK(t *testing.T, r *Replica) {
	t.Helper()
	s, err := r.ForceReserve("holder")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	s.sentAt.Store(int64(monotonic()))
	resp := &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("ok"))}
	s.stream = true
	r.observeBody(s, resp)
	io.ReadAll(resp.Body)
	s.Complete()
}

// ejected returns the IDs of the replicas with an open circuit.
func ejected(members []*Replica) (ids string) {
	for _, m := range members {
		if _, open := m.Ejected(); open {
			ids += m.ID()
		}
	}
	return ids
}

func TestCohortEjectsTheReplicaThatDiffers(t *testing.T) {
	for name, row := range map[string]struct {
		size  int
		turns []string // of each round, the replicas that fail; the others serve
		want  string
	}{
		"one of four":                      {4, []string{"a"}, "a"},
		"half of the requests of one":      {4, []string{"a", ""}, "a"},
		"one in ten of one":                {4, []string{"a", "", "", "", "", "", "", "", "", ""}, ""},
		"two of five":                      {5, []string{"ab"}, "ab"},
		"all":                              {4, []string{"abcd"}, ""},
		"all, now and then":                {4, []string{"abcd", "abcd", ""}, ""},
		"all but one":                      {4, []string{"abc"}, "abc"}, // the panic threshold of routers is above this
		"requests that fail wherever sent": {4, []string{"a", "b", "c", "d"}, ""},
		"most, often":                      {4, []string{"abc", "abc", "abc", ""}, ""},
		"two of five, often":               {5, []string{"ab", "ab", "ab", ""}, "ab"},
		"one of two":                       {2, []string{"b"}, "b"},
		"a single replica":                 {1, []string{"a"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				members := newCohort(row.size)
				next := prompt(0)
				for round := range 30 {
					failing := row.turns[round%len(row.turns)]
					for _, m := range members {
						if _, open := m.Ejected(); open {
							continue
						}
						if next++; strings.Contains(failing, m.ID()) {
							failPrompt(t, m, next, ErrServerError)
						} else {
							serveOK(t, m)
						}
					}
					time.Sleep(time.Millisecond)
				}
				if got := ejected(members); got != row.want {
					t.Errorf("%q are ejected; want %q", got, row.want)
				}
			})
		})
	}
}

func TestCohortNeedsResponsesOfSiblings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := newCohort(3)
		serveOK(t, members[1])
		time.Sleep(time.Second)
		for i := range prompt(20) {
			failPrompt(t, members[0], i+1, ErrServerError)
		}
		if got := ejected(members); got != "" {
			t.Fatalf("%q are ejected, though no sibling has responded since", got)
		}
		serveOK(t, members[1])
		failPrompt(t, members[0], 100, ErrServerError)
		if got := ejected(members); got != "a" {
			t.Errorf("%q are ejected", got)
		}
		if reason := members[0].DownReason(); !strings.Contains(reason, "10 of the last 10 requests failed, and at most 6 at 1 of 1 siblings: server error") {
			t.Errorf("the reason is %q", reason)
		}
	})
}

// A client that repeats a request shows one failure, unless a sibling serves the request.
func TestCohortCountsARepeatedRequestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := newCohort(2)
		serve := func() { serveOK(t, members[1]) }
		serve()
		for range 3 * minFailures {
			failPrompt(t, members[0], 1, ErrBroken)
			serve()
		}
		if n := members[0].outcomes.failures(); n != 1 {
			t.Errorf("%d failures", n)
		}
		for range minFailures - 1 {
			s := failPrompt(t, members[0], 1, ErrBroken)
			serve()
			s.Blame(ErrBroken)
		}
		if got := ejected(members); got != "a" {
			t.Errorf("%q are ejected, with %d failures", got, members[0].outcomes.failures())
		}
	})
}

func TestSlotBlameCountsNothingTwice(t *testing.T) {
	r := newCohort(2)[0]
	failPrompt(t, r, 1, ErrBroken).Blame(ErrBroken)
	if n := r.outcomes.failures(); n != 1 {
		t.Errorf("%d failures", n)
	}
}

// A request that fails on two replicas excuses both.
func TestSlotExcuseTakesTheFailureBack(t *testing.T) {
	members := newCohort(3)
	serveOK(t, members[2])
	for i := range prompt(10 * minFailures) {
		first, second := failPrompt(t, members[0], i+1, ErrServerError), failPrompt(t, members[1], i+1, ErrServerError)
		serveOK(t, members[2])
		for range 2 {
			first.Excuse()
			second.Excuse()
		}
	}
	if got := ejected(members); got != "" || members[0].outcomes.failures()+members[1].outcomes.failures() != 0 {
		t.Errorf("%q are ejected", got)
	}
}

// A failure that did not count cannot be taken back.
func TestSlotExcuseTakesBackNothingElse(t *testing.T) {
	r := newCohort(2)[0]
	failPrompt(t, r, 1, ErrBroken)
	failPrompt(t, r, 1, ErrBroken).Excuse()
	s, err := r.TryReserve("holder", 0)
	if err != nil {
		t.Fatal(err)
	}
	s.Excuse()
	s.Release()
	if n := r.outcomes.failures(); n != 1 {
		t.Errorf("%d failures", n)
	}
}

func TestCohortForgetsOldFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := newCohort(2)
		for i := range prompt(minFailures) {
			serveOK(t, members[1])
			failPrompt(t, members[0], i+1, ErrServerError)
			time.Sleep(outcomeTTL / 2)
			if i == minFailures-2 {
				time.Sleep(outcomeTTL)
			}
		}
		if got := ejected(members); got != "" {
			t.Errorf("%q are ejected for old failures", got)
		}
	})
}

// A replica that fails again after a successful trial is ejected sooner.
func TestCohortEjectsSoonerOnProbation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := newCohort(2)
		next, failures := prompt(0), 0
		for range 2 {
			for failures = 0; ejected(members) == ""; failures++ {
				serveOK(t, members[1])
				next++
				failPrompt(t, members[0], next, ErrServerError)
			}
			time.Sleep(trialInterval)
			s, err := members[0].TryReserve("trial", 0)
			if err != nil {
				t.Fatal(err)
			}
			resp := &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("ok"))}
			s.stream = true
			members[0].observeBody(s, resp)
			io.ReadAll(resp.Body)
			s.Complete()
			s.Release()
			if got := ejected(members); got != "" {
				t.Fatalf("%q are ejected after the trial", got)
			}
		}
		if failures != minFailures-probation {
			t.Errorf("it was ejected after %d more failures", failures)
		}
	})
}

// hang sends a stream of a request of the given size that never gets a byte. ended counts the calls
// of OnSilence's function.
func hang(t *testing.T, r *Replica, size int64) (ended *atomic.Int32, s *Slot) {
	t.Helper()
	s, err := r.ForceReserve("holder")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Release)
	ended = new(atomic.Int32)
	s.OnSilence(func(cause error) {
		if errors.Is(cause, ErrSilent) {
			ended.Add(1)
		}
	})
	s.size, s.stream = size, true
	s.sentAt.Store(int64(monotonic()))
	return ended, s
}

func TestCohortEjectsASilentReplica(t *testing.T) {
	for name, row := range map[string]struct {
		requests int
		size     int64
		wait     time.Duration
		siblings func(t *testing.T, members []*Replica)
		want     string
	}{
		"silence while siblings respond": {2, 0, minSilence + sweepInterval, nil, "a"},
		"not yet":                        {2, 0, minSilence, nil, ""},
		"one request":                    {1, 0, 2*minSilence - time.Millisecond, nil, ""},
		"one request, for longer":        {1, 0, 2 * minSilence, nil, "a"},
		"long prompts":                   {2, 160 << 10, 10 * time.Second, nil, ""},
		"long prompts, for longer":       {2, 160 << 10, 13 * time.Second, nil, "a"},
		"nobody responds":                {2, 0, time.Minute, func(*testing.T, []*Replica) {}, ""},
		"bytes to another request": {2, 0, time.Minute, func(t *testing.T, members []*Replica) {
			members[0].health.bodyReads.Add(1)
			serveOK(t, members[1])
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				members := newCohort(3)
				siblings := row.siblings
				if siblings == nil {
					siblings = func(t *testing.T, members []*Replica) { serveOK(t, members[1]) }
				}
				siblings(t, members) // the first look
				var ends []*atomic.Int32
				for range row.requests {
					end, _ := hang(t, members[0], row.size)
					ends = append(ends, end)
				}
				_, unstreamed := hang(t, members[0], 0)
				unstreamed.stream = false
				began := time.Now()
				for time.Since(began) < row.wait {
					time.Sleep(min(sweepInterval, row.wait-time.Since(began)))
					siblings(t, members)
				}
				if got := ejected(members); got != row.want {
					t.Errorf("%q are ejected; want %q: %s", got, row.want, members[0].DownReason())
				}
				for _, end := range ends {
					if n := end.Load(); (n > 0) != (row.want != "") {
						t.Errorf("a request was ended %d times", n)
					}
				}
			})
		})
	}
}

// A fleet in which first bytes take long is not compared by seconds.
func TestCohortToleratesTheSilenceOfASlowFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := newCohort(2)
		_, slow := hang(t, members[1], 0)
		time.Sleep(10 * time.Second)
		slow.onFirstByte()
		_, unstreamed := hang(t, members[1], 0)
		unstreamed.stream = false
		time.Sleep(10 * time.Hour)
		unstreamed.onFirstByte() // whose first byte says nothing about the first bytes of streams
		_, slow = hang(t, members[1], 0)
		time.Sleep(10 * time.Second)
		slow.onFirstByte()
		hang(t, members[0], 0)
		hang(t, members[0], 0)
		for range 29 {
			time.Sleep(time.Second)
			serveOK(t, members[1])
		}
		if got := ejected(members); got != "" {
			t.Errorf("%q are ejected, though first bytes took 10 s a moment ago", got)
		}
		for range 120 {
			time.Sleep(time.Second)
			serveOK(t, members[1])
		}
		if got := ejected(members); got != "a" {
			t.Errorf("%q are ejected", got)
		}
	})
}

// A hanging trial ends as soon as its silence is certain, and the next one follows.
func TestCohortEndsASilentTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := newCohort(2)
		members[0].eject(ErrSilent, false)
		serveOK(t, members[1])
		time.Sleep(trialInterval)
		ended, _ := hang(t, members[0], 0)
		for range 20 {
			time.Sleep(sweepInterval)
			serveOK(t, members[1])
		}
		if ended.Load() == 0 {
			t.Error("the trial was not ended")
		}
		if !members[0].Available() {
			t.Error("no other trial is admitted")
		}
	})
}

// The goroutines of requests, of their siblings and of a membership change at once.
func TestCohortStorm(t *testing.T) {
	members := newCohort(4)
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	done := make(chan struct{})
	for i := range 8 {
		go func() {
			defer func() { done <- struct{}{} }()
			for n := prompt(1); ctx.Err() == nil; n++ {
				m := members[(i+int(n))%len(members)]
				s, err := m.ForceReserve("holder")
				if err != nil {
					continue
				}
				s.SetRequest(n%64, true)
				s.OnSilence(func(error) {})
				s.Start()
				s.sentAt.Store(int64(monotonic()))
				if n%3 == 0 {
					s.ReportFailure(ErrBroken)
					s.Blame(ErrBroken)
					s.Excuse()
				} else {
					s.onFirstByte()
					s.complete = true
					s.Complete()
				}
				s.Release()
				if n%100 == 0 {
					CompareReplicas(members)
				}
			}
		}()
	}
	for range 8 {
		<-done
	}
	for _, m := range members {
		wantUsage(t, m, 0, 0)
	}
}

// After a pause of this process the bytes of all replicas but one are unread: none of them is silent.
func TestCohortForgivesAPauseOfThisProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := newCohort(3)
		serveOK(t, members[1])
		ended, _ := hang(t, members[0], 0)
		hang(t, members[0], 0)
		time.Sleep(time.Minute)
		serveOK(t, members[1]) // the first to be read afterwards
		members[0].health.bodyReads.Add(1)
		for range 8 {
			time.Sleep(sweepInterval)
			serveOK(t, members[1])
		}
		if ended.Load() != 0 || ejected(members) != "" {
			t.Errorf("%d requests were ended, and %q ejected", ended.Load(), ejected(members))
		}
	})
}

// A change of the membership does not begin the silence anew.
func TestCohortRemembersSilenceAcrossChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := newCohort(3)
		serveOK(t, members[1])
		hang(t, members[0], 0)
		hang(t, members[0], 0)
		for range 16 {
			CompareReplicas(members)
			time.Sleep(sweepInterval)
			serveOK(t, members[1])
		}
		if got := ejected(members); got != "a" {
			t.Errorf("%q are ejected", got)
		}
	})
}

// A request that was given up gets no byte any more, so nothing of a response has reached its client.
func TestSlotThatWasGivenUpReadsNoByte(t *testing.T) {
	r := newCohort(2)[0]
	s, err := r.TryReserve("holder", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	resp := &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("x"))}
	r.observeBody(s, resp)
	s.firstByte.Store(givenUp)
	if n, err := resp.Body.Read(make([]byte, 1)); n != 0 || !errors.Is(err, ErrSilent) {
		t.Errorf("read %d bytes, and %v", n, err)
	}
}

// A fleet's longest wait is not lost to a clock reading from before it.
func TestHealthSlowFirstByteOfALaterSecond(t *testing.T) {
	var h health
	h.observeFirstByte(20*time.Second, 1001*time.Second)
	h.observeFirstByte(time.Second, 1000*time.Second)
	if got := h.slowFirstByte(1000 * time.Second); got != 20*time.Second {
		t.Errorf("the longest wait is %v", got)
	}
}

func TestReplicaFirstByteWaitFollowsTheLastStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newCohort(2)[0]
		if got := r.FirstByteWait(); got != 0 {
			t.Errorf("%v before any stream", got)
		}
		for n, row := range []struct{ wait, least, most time.Duration }{
			{time.Second, time.Second, time.Second},
			{9 * time.Second, 2 * time.Second, 2 * time.Second}, // an eighth of the difference
			{2 * time.Second, 2 * time.Second, 2 * time.Second},
		} {
			_, s := hang(t, r, 0)
			time.Sleep(row.wait)
			s.onFirstByte()
			if got := r.FirstByteWait(); got < row.least || got > row.most {
				t.Errorf("after stream %d the mean is %v", n+1, got)
			}
		}
		_, unstreamed := hang(t, r, 0)
		unstreamed.stream = false
		time.Sleep(time.Hour)
		unstreamed.onFirstByte()
		if got := r.FirstByteWait(); got != 2*time.Second {
			t.Errorf("%v after a response that was not streamed", got)
		}
	})
}
