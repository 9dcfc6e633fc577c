package llmserver

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The rule of outlier detection. It follows Envoy's success rate ejection and gRPC's proposal A50
// in comparing a replica with the others, but counts requests instead of waiting for an interval,
// since a fleet of LLM servers has few replicas and few requests per second.
const (
	// recentOutcomes is the number of latest outcomes of a replica that are compared.
	recentOutcomes = 10
	// minFailures is the number of failures among them without which a replica is not ejected.
	minFailures = 5
	// minExcess is the number of failures that a replica has more than a sibling if the sibling is
	// better.
	minExcess = 4
	// probation is the number of failures with which a replica comes back into service. A replica
	// that keeps failing is ejected the sooner.
	probation = 2
	// outcomeTTL is the age at which outcomes without a later one are forgotten.
	outcomeTTL = time.Minute
)

// The rule of silence.
const (
	// minSilence is the shortest time without a byte from a replica with streams that is a failure
	// while siblings respond. Fleets that are slow by nature get slowFactor times the longest
	// recent wait for the first byte of a stream, and long prompts the time to process their bytes.
	minSilence     = 3 * time.Second
	slowFactor     = 3
	bytesPerSecond = 16 << 10
	// sweepInterval is the least time between two looks for silent replicas.
	sweepInterval = 250 * time.Millisecond
	// slowHalfLife is the time in which a long wait for a first byte counts for half.
	slowHalfLife = 30 * time.Second
)

// A Cohort is a set of replicas that serve the same requests, those of one model, and are compared
// with each other: a failure shared by siblings has its cause in the requests, or in something that
// all replicas depend on, and ejects none. A replica without siblings is never ejected.
//
// A Cohort has no goroutine and no timer. Responses of its replicas drive the look for silent ones:
// if none responds, silence means nothing. All methods may be called from any goroutine and do not
// block.
type Cohort struct {
	members   []*Replica
	nextSweep atomic.Int64 // monotonic
}

// A silence is the time since a replica with running requests sent a byte of any response body. It
// stays with the replica when the membership changes. Sweeps write it, one at a time but for a
// moment after such a change.
type silence struct {
	reads     atomic.Uint64 // health.bodyReads when last looked at
	since     atomic.Int64  // monotonic
	suspected atomic.Bool   // too long at the last sweep, too
}

// observe looks at the replica at the given time, and reports whether it has been silent for
// minSilence at this sweep and the one before. One sweep is not enough: after a pause of this
// process, the bytes of all replicas but one have not been read yet.
func (s *silence) observe(r *Replica, now time.Duration) (hung bool) {
	if reads := r.health.bodyReads.Load(); s.reads.Swap(reads) != reads || r.gate.counts().running == 0 {
		s.since.Store(int64(now))
		s.suspected.Store(false)
		return false
	}
	return now-time.Duration(s.since.Load()) >= minSilence && s.suspected.Swap(true)
}

// CompareReplicas makes the replicas siblings of each other, and of no others. members must not be
// changed afterwards.
func CompareReplicas(members []*Replica) {
	c := &Cohort{members: members}
	for _, m := range members {
		m.cohort.Store(c)
	}
}

// outcomes are the latest outcomes of a replica's requests. The zero value has no failure, which is
// the fast path of recordSuccess.
type outcomes struct {
	history atomic.Uint32 // 1 for a failure, the latest outcome in the lowest bit; the upper bits are 0

	mu      sync.Mutex // taken for failures only, and held for no callback
	since   time.Duration
	last    time.Duration
	prompts [recentOutcomes]uint64 // fingerprints of the latest failed requests; 0 for none
	next    int                    // index of the oldest fingerprint
}

// update applies next to the history.
func (o *outcomes) update(next func(uint32) uint32) (after uint32) {
	for {
		h := o.history.Load()
		if after = next(h) & (1<<recentOutcomes - 1); o.history.CompareAndSwap(h, after) {
			return after
		}
	}
}

// failures returns the number of failures among the latest outcomes.
func (o *outcomes) failures() int { return bits.OnesCount32(o.history.Load()) }

// recordSuccess records a complete good response.
func (o *outcomes) recordSuccess() {
	if o.history.Load() != 0 {
		o.update(func(h uint32) uint32 { return h << 1 })
	}
}

// recordFailure records a failed request, unless one with the same fingerprint is among the latest
// failed ones: a client repeating a request shows one failure, not many. A fingerprint of 0 is
// unlike any other. The result is the number of failures and the time of the first of them; ok is
// false if nothing was recorded.
func (o *outcomes) recordFailure(fingerprint uint64) (failures int, since time.Duration, ok bool) {
	now := monotonic()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.history.Load() == 0 || now-o.last > outcomeTTL {
		o.history.Store(0)
		o.since, o.prompts = now, [recentOutcomes]uint64{}
	}
	if fingerprint != 0 && slices.Contains(o.prompts[:], fingerprint) {
		return 0, 0, false
	}
	o.prompts[o.next], o.next = fingerprint, (o.next+1)%recentOutcomes
	o.last = now
	return bits.OnesCount32(o.update(func(h uint32) uint32 { return h<<1 | 1 })), o.since, true
}

// excuse takes one failure back.
func (o *outcomes) excuse() { o.update(func(h uint32) uint32 { return h & (h - 1) }) }

// reset forgets all outcomes but a number of failures.
func (o *outcomes) reset(failures int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.history.Store(1<<failures - 1)
	o.since, o.last, o.prompts = monotonic(), monotonic(), [recentOutcomes]uint64{}
}

// compare returns the reason to eject r for its failures since the given time, nil if there is
// none: at least half of the siblings that have responded since then are better. cause is the
// latest failure.
func (c *Cohort) compare(r *Replica, failures int, since time.Duration, cause error) error {
	if c == nil || failures < minFailures {
		return nil
	}
	responded, better := 0, 0
	for _, m := range c.members {
		if m == r || time.Duration(m.health.lastResponse.Load()) < since {
			continue
		}
		responded++
		if m.outcomes.failures()+minExcess <= failures {
			better++
		}
	}
	if better == 0 || 2*better < responded {
		return nil
	}
	return fmt.Errorf("%d of the last %d requests failed, and at most %d at %d of %d siblings: %w",
		failures, recentOutcomes, failures-minExcess, better, responded, cause)
}

// sweep looks for silent members, at most once per sweepInterval. It is called when a member begins
// a good response.
func (c *Cohort) sweep(now time.Duration) {
	due := c.nextSweep.Load()
	if int64(now) < due || !c.nextSweep.CompareAndSwap(due, int64(now+sweepInterval)) {
		return
	}
	var hung []*Replica
	for _, m := range c.members {
		if m.silence.observe(m, now) {
			hung = append(hung, m)
		}
	}
	if len(hung) == 0 {
		return
	}
	patience := minSilence
	for _, m := range c.members {
		patience = max(patience, slowFactor*m.health.slowFirstByte(now))
	}
	for _, m := range hung {
		m.ejectIfSilent(now, patience)
	}
}

// ejectIfSilent ejects the replica if two of its streams have waited for their first byte for
// longer than patience, or one for twice as long, and ends the requests without a byte with
// ErrSilent, so that they can be retried on other replicas; those without a function to end them go
// on. During trials one stream is enough.
//
// Streams alone are evidence, because other responses are silent until they are complete.
func (r *Replica) ejectIfSilent(now, patience time.Duration) {
	var waiting []*Slot
	var longest time.Duration
	evidence, open := 0, r.circuit.state().isOpen()
	r.mu.Lock()
	for s := r.live; s != nil; s = s.next {
		sentAt := time.Duration(s.sentAt.Load())
		if sentAt == 0 || s.firstByte.Load() != awaited {
			continue
		}
		waiting = append(waiting, s)
		wait, allowed := now-sentAt, patience+time.Duration(s.size)*time.Second/bytesPerSecond
		switch longest = max(longest, wait); {
		case !s.stream || wait < allowed:
		case open || wait >= 2*allowed:
			evidence += 2
		default:
			evidence++
		}
	}
	r.mu.Unlock()
	if evidence < 2 {
		return
	}
	reason := fmt.Errorf("no byte to %d requests for %.1f s: %w", len(waiting), longest.Seconds(), ErrSilent)
	if !open {
		r.eject(reason, false)
	}
	for _, s := range waiting {
		if s.abort != nil && s.firstByte.CompareAndSwap(awaited, givenUp) {
			s.abort(reason)
		}
	}
}

// observeFirstByte records a wait for the first byte of a good response.
func (h *health) observeFirstByte(wait, now time.Duration) {
	for next := uint64(wait.Milliseconds())<<32 | uint64(uint32(now/time.Second)); ; {
		w := h.slowest.Load()
		if wait <= slowFirstByte(w, now) || h.slowest.CompareAndSwap(w, next) {
			return
		}
	}
}

// observeMeanWait adds a wait for the first byte of a stream to the mean, in which it weighs an
// eighth. Of concurrent calls one may be lost.
func (h *health) observeMeanWait(wait time.Duration) {
	if mean := time.Duration(h.meanWait.Load()); mean > 0 {
		wait = mean + (wait-mean)/8
	}
	h.meanWait.Store(int64(max(wait, 1)))
}

// FirstByteWait returns the mean wait for the first byte of the last streams, about eight; 0 if
// there was none.
func (r *Replica) FirstByteWait() time.Duration { return time.Duration(r.health.meanWait.Load()) }

// slowFirstByte returns the longest recent wait for a first byte, in which earlier waits count for
// less.
func (h *health) slowFirstByte(now time.Duration) time.Duration {
	return slowFirstByte(h.slowest.Load(), now)
}

func slowFirstByte(w uint64, now time.Duration) time.Duration {
	// Another goroutine may have stored a later second than that of now.
	age := time.Duration(max(0, int32(uint32(now/time.Second)-uint32(w)))) * time.Second
	return time.Duration(w>>32) * time.Millisecond >> (age / slowHalfLife)
}
