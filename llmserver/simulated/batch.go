package simulated

import (
	"errors"
	"math"
	"slices"
	"time"
)

// prefillChunk is how many prompt tokens one step computes at most, so that a long prompt delays the running answers but
// does not stop them (vLLM: max_num_batched_tokens).
const prefillChunk = 2048

// ErrTooLarge says that a sequence would not fit even into an empty cache.
var ErrTooLarge = errors.New("prompt and answers exceed the KV cache")

// A Sequence is one prompt and the answers that grow from it. It is added to one Batch, once; the exported fields do not change after that.
type Sequence struct {
	Prompt  int      // tokens, at least 1
	Answers int      // that grow side by side from the prompt, at least 1
	Limit   int      // tokens of each answer; 0 = compute the prompt only
	Chain   []uint64 // hashes of the whole blocks of the prompt and, as far as known, of the first answer after it

	// Progress is called by Finish when the prompt has been computed and whenever the answers have grown, with the tokens of
	// each answer so far. It must not block. Nil is nobody.
	Progress func(generated int)

	lease     Lease // once it is admitted
	cached    int   // prompt tokens that were in memory
	computed  int   // prompt tokens computed or cached
	generated int   // tokens of each answer
	chunk     int   // prompt tokens computed by the current step
	growing   int   // answers that the current step lets grow
}

// Cached is how many prompt tokens needed no computing. It is settled before the first Progress.
func (s *Sequence) Cached() int { return s.cached }

func (s *Sequence) finished() bool { return s.computed == s.Prompt && s.generated == s.Limit }

// A Batch is the scheduler of one engine, in steps. Sequences wait in order of arrival until there is a place and memory for
// the prompt and the whole of its answers (so that none has to be stopped half way), then run until their answers are
// complete:
//
//	Add ─▶ waiting ──Begin──▶ running ──Finish, Finish, …──▶ gone
//	          └────────────Remove─┴──────────────────────────▶ gone
//
// The owner calls Begin, lets Step pass in whatever time it lives in, calls Finish, and so on; where nothing else happens, it
// may let several alike pass at once. It belongs to one goroutine.
type Batch struct {
	cost       Cost
	cache      *Cache
	maxRunning int
	waiting    []*Sequence
	running    []*Sequence
	advanced   []*Sequence // of Finish
	chunk      int         // sums over running, for the current step
	growing    int
	totals     Totals
}

// Totals is what a batch has done since it was made.
type Totals struct {
	QueriedTokens   int64 // prompt tokens looked up in the cache, at admission
	HitTokens       int64 // found there
	PromptTokens    int64 // of prompts completely computed
	CachedTokens    int64 // of them, those that were in the cache
	GeneratedTokens int64
}

// NewBatch makes an empty batch in which at most maxRunning sequences run.
func NewBatch(cost Cost, cache *Cache, maxRunning int) *Batch {
	return &Batch{cost: cost, cache: cache, maxRunning: maxRunning}
}

// Totals reads the counters.
func (b *Batch) Totals() Totals { return b.totals }

// Waiting is the number of sequences not admitted yet.
func (b *Batch) Waiting() int { return len(b.waiting) }

// Running is the number of sequences admitted and not complete.
func (b *Batch) Running() int { return len(b.running) }

// Add puts a sequence at the end of the waiting ones, or refuses it with ErrTooLarge.
func (b *Batch) Add(s *Sequence) error {
	if b.blocksNeeded(s) > b.cache.capacity {
		return ErrTooLarge
	}
	b.waiting = append(b.waiting, s)
	return nil
}

// Remove takes a sequence out wherever it is, at once: a step in progress no longer computes for it and gets shorter. A
// sequence that is complete or unknown is none of its business.
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

// Begin admits what there is room for and plans a step; false: there is nothing to do.
func (b *Batch) Begin() bool {
	b.admitWaiting()
	b.chunk, b.growing = 0, 0
	for _, s := range b.running {
		s.chunk = min(s.Prompt-s.computed, prefillChunk-b.chunk)
		s.growing = 0
		if s.computed+s.chunk == s.Prompt && s.generated < s.Limit {
			s.growing = s.Answers
		}
		b.chunk += s.chunk
		b.growing += s.growing
	}
	return len(b.running) > 0
}

// Step is the length of the step that Begin planned, without what Remove has taken out since.
func (b *Batch) Step() time.Duration { return b.cost.Step(b.chunk, b.growing) }

// Alike is how many steps like the one that Begin planned follow each other if nothing is added or removed: those until an
// answer is complete or a prompt comes to its last chunk. Where somebody waits while a prompt is computed it is 1, for that may
// turn out to need less memory than was set aside, and then there may be room.
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

// alike is for how many steps the sequence does what it does in the current one.
func (s *Sequence) repeatableSteps() int {
	switch {
	case s.chunk == prefillChunk:
		return max(1, (s.Prompt-s.computed-1)/prefillChunk) // in the last one the answers begin
	case s.chunk > 0:
		return 1
	case s.growing > 0:
		return s.Limit - s.generated
	default:
		return math.MaxInt // its turn comes after the others'
	}
}

// Finish ends that many steps, 1 to Alike: prompts are further, answers have grown, complete sequences have left, and then
// progress is told.
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

func (b *Batch) advanceSequence(s *Sequence, steps int) (told bool) {
	if s.chunk > 0 {
		s.computed += steps * s.chunk
		if told = s.computed == s.Prompt; told {
			b.totals.PromptTokens += int64(s.Prompt)
			b.totals.CachedTokens += int64(s.cached)
		}
	}
	if s.growing > 0 {
		s.generated += steps
		b.totals.GeneratedTokens += int64(steps * s.growing)
		told = true
	}
	s.chunk, s.growing = 0, 0
	// The token generated last has not been through the model yet, so its block is not whole.
	inMemory := s.computed + max(0, s.generated-1)
	if known := s.lease.Known(); known < len(s.Chain) && inMemory >= (known+1)*b.cache.blockTokens {
		s.lease.Extend(s.Chain[:min(len(s.Chain), inMemory/b.cache.blockTokens)])
	}
	return told
}

func (b *Batch) admitWaiting() {
	admitted := 0
	for _, s := range b.waiting {
		if len(b.running) == b.maxRunning {
			break
		}
		// The last prompt token is computed even if its block is in memory: the first answer token comes from it.
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

// blocks is the memory that a sequence will have used when it is complete.
func (b *Batch) blocksNeeded(s *Sequence) int {
	tokens := s.Prompt + s.Answers*s.Limit
	return (tokens + b.cache.blockTokens - 1) / b.cache.blockTokens
}
