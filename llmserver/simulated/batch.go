package simulated

import (
	"errors"
	"math"
	"slices"
	"time"
)

// prefillChunk is the maximum number of prompt tokens per step. Chunks let a long prompt slow the
// running choices down instead of stopping them (vLLM: max_num_batched_tokens).
const prefillChunk = 2048

// ErrTooLarge is returned for a sequence that does not fit even into an empty cache.
var ErrTooLarge = errors.New("prompt and choices exceed the KV cache")

// A Sequence is one prompt and the choices growing from it. A Sequence may be added once, to one
// Batch; the exported fields must not change afterwards.
type Sequence struct {
	Prompt  int      // tokens, at least 1
	Choices int      // choices growing in parallel from the prompt, at least 1
	Limit   int      // tokens of each choice; 0 = compute the prompt only
	Chain   []uint64 // hashes of the whole blocks of the prompt and, as far as known, of the first choice after it

	// Progress, if not nil, is called by Finish when the prompt has been computed and whenever the
	// choices have grown, with the tokens of each choice so far. Progress must not block.
	Progress func(generated int)

	lease     Lease // once admitted
	cached    int   // prompt tokens found in memory
	computed  int   // prompt tokens computed or cached
	generated int   // tokens of each choice
	chunk     int   // prompt tokens computed by the current step
	growing   int   // choices grown by the current step
}

// Cached returns the number of prompt tokens found in the cache, final before the first Progress.
func (s *Sequence) Cached() int { return s.cached }

func (s *Sequence) finished() bool { return s.computed == s.Prompt && s.generated == s.Limit }

// A Batch is the step-wise scheduler of one engine. Sequences wait in order of arrival until there
// is room for one more and memory for the prompt with all of its choices (no sequence is ever
// preempted), then run until their choices are complete:
//
//	Add ─▶ waiting ──Begin──▶ running ──Finish, Finish, …──▶ gone
//	          └────────────Remove─┴──────────────────────────▶ gone
//
// The owner calls Begin, lets the time Step pass, real or virtual, calls Finish, and so on. If
// nothing is added or removed meanwhile, Alike steps may pass at once. A Batch must be used by one
// goroutine only.
type Batch struct {
	cost       Cost
	cache      *Cache
	maxRunning int
	waiting    []*Sequence
	running    []*Sequence
	advanced   []*Sequence // scratch memory of Finish
	chunk      int         // sum over running, for the current step
	growing    int         // likewise
	totals     Totals
}

// Totals are the counters of a batch since NewBatch.
type Totals struct {
	QueriedTokens   int64 // prompt tokens looked up in the cache, at admission
	HitTokens       int64 // found there
	PromptTokens    int64 // of prompts completely computed
	CachedTokens    int64 // the part of them found in the cache
	GeneratedTokens int64
}

// NewBatch returns an empty batch in which at most maxRunning sequences run.
func NewBatch(cost Cost, cache *Cache, maxRunning int) *Batch {
	return &Batch{cost: cost, cache: cache, maxRunning: maxRunning}
}

// Totals returns the counters.
func (b *Batch) Totals() Totals { return b.totals }

// Waiting returns the number of sequences not admitted yet.
func (b *Batch) Waiting() int { return len(b.waiting) }

// Running returns the number of sequences admitted and not complete.
func (b *Batch) Running() int { return len(b.running) }

// Add appends a sequence to the waiting ones, or returns ErrTooLarge.
func (b *Batch) Add(s *Sequence) error {
	if b.blocksNeeded(s) > b.cache.capacity {
		return ErrTooLarge
	}
	b.waiting = append(b.waiting, s)
	return nil
}

// Remove removes a waiting or running sequence at once: a step in progress gets shorter by the
// sequence's share. Remove ignores complete and unknown sequences.
func (b *Batch) Remove(s *Sequence) {
	if i := slices.Index(b.waiting, s); i >= 0 {
		b.waiting = slices.Delete(b.waiting, i, i+1)
	} else if i := slices.Index(b.running, s); i >= 0 {
		b.running = slices.Delete(b.running, i, i+1)
		b.chunk -= s.chunk
		b.growing -= s.growing
		s.lease.Release()
	}
}

// Begin admits waiting sequences as far as there is room and plans a step. It reports false if
// there is nothing to do.
func (b *Batch) Begin() bool {
	b.admitWaiting()
	b.chunk, b.growing = 0, 0
	for _, s := range b.running {
		s.chunk = min(s.Prompt-s.computed, prefillChunk-b.chunk)
		s.growing = 0
		if s.computed+s.chunk == s.Prompt && s.generated < s.Limit {
			s.growing = s.Choices
		}
		b.chunk += s.chunk
		b.growing += s.growing
	}
	return len(b.running) > 0
}

// Step returns the length of the step planned by Begin, without sequences removed since.
func (b *Batch) Step() time.Duration { return b.cost.Step(b.chunk, b.growing) }

// Alike returns the number of consecutive steps equal to the planned one, if nothing is added or
// removed: until a choice is complete or a prompt reaches its last chunk. It returns 1 if a
// sequence waits while a prompt is computed, because the prompt may need less memory than reserved
// and then make room.
func (b *Batch) Alike() int {
	if b.chunk > 0 && len(b.waiting) > 0 || b.chunk+b.growing == 0 {
		return 1
	}
	steps := math.MaxInt
	for _, s := range b.running {
		steps = min(steps, s.repeatableSteps())
	}
	return steps
}

// repeatableSteps returns the number of steps during which the sequence repeats the work of the
// current one.
func (s *Sequence) repeatableSteps() int {
	switch {
	case s.chunk == prefillChunk:
		return max(1, (s.Prompt-s.computed-1)/prefillChunk) // the last chunk also starts the choices
	case s.chunk > 0:
		return 1
	case s.growing > 0:
		return s.Limit - s.generated
	default:
		return math.MaxInt // idle in this step: earlier prompts fill the chunk
	}
}

// Finish ends the given number of steps, 1 to Alike. It advances prompts and choices, removes
// complete sequences, and then calls Progress.
func (b *Batch) Finish(steps int) {
	advanced, finished := b.advanced[:0], false
	for _, s := range b.running {
		if b.advanceSequence(s, steps) {
			advanced = append(advanced, s)
		}
		if s.finished() {
			finished = true
			s.lease.Release()
		}
	}
	if finished {
		b.running = slices.DeleteFunc(b.running, (*Sequence).finished)
	}
	for _, s := range advanced {
		if s.Progress != nil {
			s.Progress(s.generated)
		}
	}
	clear(advanced)
	b.advanced = advanced
}

// advanceSequence applies the steps to one sequence and reports whether its Progress is due.
func (b *Batch) advanceSequence(s *Sequence, steps int) (progress bool) {
	if s.chunk > 0 {
		s.computed += steps * s.chunk
		if progress = s.computed == s.Prompt; progress {
			b.totals.PromptTokens += int64(s.Prompt)
			b.totals.CachedTokens += int64(s.cached)
		}
	}
	if s.growing > 0 {
		s.generated += steps
		b.totals.GeneratedTokens += int64(steps * s.growing)
		progress = true
	}
	s.chunk, s.growing = 0, 0
	// The last generated token has not passed through the model yet, and so its block is
	// incomplete.
	inMemory := s.computed + max(0, s.generated-1)
	if known := s.lease.Known(); known < len(s.Chain) && inMemory >= (known+1)*b.cache.blockTokens {
		s.lease.Extend(s.Chain[:min(len(s.Chain), inMemory/b.cache.blockTokens)])
	}
	return progress
}

// admitWaiting starts waiting sequences in order of arrival. It stops at the first one without
// room: sequences do not overtake each other.
func (b *Batch) admitWaiting() {
	admitted := 0
	for _, s := range b.waiting {
		if len(b.running) == b.maxRunning {
			break
		}
		// The last prompt token is computed even if its block is in memory, to generate the first
		// token.
		reusable := (s.Prompt - 1) / b.cache.blockTokens
		lease, ok := b.cache.Lease(s.Chain[:min(len(s.Chain), reusable)], b.blocksNeeded(s))
		if !ok {
			break
		}
		s.lease = lease
		s.cached = s.lease.Known() * b.cache.blockTokens
		s.computed = s.cached
		b.totals.QueriedTokens += int64(s.Prompt)
		b.totals.HitTokens += int64(s.cached)
		b.running = append(b.running, s)
		admitted++
	}
	b.waiting = slices.Delete(b.waiting, 0, admitted)
}

// blocksNeeded returns the memory of a complete sequence.
func (b *Batch) blocksNeeded(s *Sequence) int {
	tokens := s.Prompt + s.Choices*s.Limit
	return (tokens + b.cache.blockTokens - 1) / b.cache.blockTokens
}
