package simulated

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Config describes a simulated engine. Fields that are zero or negative take the default in their
// comment.
type Config struct {
	ID    string // "simulated"; sent with every response as X-Simulated-Replica
	Model string // "demo"; the only model served

	PrefillTokensPerSecond float64       // 8000
	DecodeStep             time.Duration // 6 ms
	DecodeStepPerRequest   time.Duration // 0.35 ms

	KVCacheTokens int // 524288, in blocks of 16; also the longest prompt with its choices
	MaxRunning    int // 256 prompts computed at once; the others wait
	MaxOngoing    int // no bound; further requests, waiting ones included, are refused with 503
}

func (c Config) withDefaults() Config {
	c.ID = cmp.Or(c.ID, "simulated")
	c.Model = cmp.Or(c.Model, "demo")
	c.PrefillTokensPerSecond = cmp.Or(max(c.PrefillTokensPerSecond, 0), 8000)
	c.DecodeStep = cmp.Or(max(c.DecodeStep, 0), 6*time.Millisecond)
	c.DecodeStepPerRequest = cmp.Or(max(c.DecodeStepPerRequest, 0), 350*time.Microsecond)
	c.KVCacheTokens = max(cmp.Or(max(c.KVCacheTokens, 0), 524288), blockTokens)
	c.MaxRunning = cmp.Or(max(c.MaxRunning, 0), 256)
	return c
}

var errClosed = errors.New("engine is closed")

// An Engine is a running simulated engine. One goroutine owns the batch; the others send functions
// for that goroutine to run. All methods are safe for concurrent use.
type Engine struct {
	config   Config
	batch    *Batch            // owned by runLoop
	commands chan func(*Batch) // for runLoop
	closing  chan struct{}
	closed   chan struct{} // closed when runLoop has ended
	close    func()

	counts      requestCounts
	faults      faultState
	connections atomic.Int64
}

// New starts an engine. The caller must call Close.
func New(config Config) *Engine {
	config = config.withDefaults()
	cost := Cost{config.PrefillTokensPerSecond, config.DecodeStep, config.DecodeStepPerRequest}
	e := &Engine{
		config:   config,
		batch:    NewBatch(cost, NewCache(config.KVCacheTokens, blockTokens), config.MaxRunning),
		commands: make(chan func(*Batch)),
		closing:  make(chan struct{}),
		closed:   make(chan struct{}),
	}
	e.close = sync.OnceFunc(func() { close(e.closing) })
	e.faults.replace(Faults{})
	go e.runLoop()
	return e
}

// Close ends the engine and waits for its goroutine. Requests in flight are aborted. A second call
// waits too.
func (e *Engine) Close() {
	e.close()
	<-e.closed
}

// maxCatchUp is the largest delay of a step compensated by the next step.
const maxCatchUp = 20 * time.Millisecond

// runLoop owns the batch and alone decides when a step ends. Commands may change the length of the
// step in progress.
func (e *Engine) runLoop() {
	defer close(e.closed)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var began, ends time.Time // of the step in progress
	stepping := false
	for {
		select {
		case <-e.closing:
			return
		case command := <-e.commands:
			command(e.batch)
		case <-timer.C:
			if stepping {
				e.batch.Finish(1)
				stepping = false
			}
		}
		now := time.Now()
		if stepping {
			// A command may have changed the step's length, but cannot end the step in the past.
			if changed := began.Add(e.scaleStep(e.batch.Step())); !changed.Equal(ends) {
				ends = later(changed, now)
			}
		} else if e.batch.Begin() {
			stepping = true
			// A step begins where the previous one ended, so late timers do not add up. After a
			// longer delay the step begins now: an overloaded machine makes the engine slower.
			if began = ends; now.Sub(ends) > maxCatchUp {
				began = now
			}
			ends = began.Add(e.scaleStep(e.batch.Step()))
		} else {
			ends = time.Time{}
			timer.Stop()
			continue
		}
		timer.Reset(time.Until(ends))
	}
}

func (e *Engine) scaleStep(step time.Duration) time.Duration {
	return time.Duration(float64(step) * cmp.Or(e.faults.current().Slow, 1))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// withBatch runs f on the batch's goroutine and waits for it. It reports false, without having
// called f, if the engine is closed.
func (e *Engine) withBatch(f func(*Batch)) bool {
	called := make(chan struct{})
	select {
	case e.commands <- func(b *Batch) { f(b); close(called) }:
		<-called
		return true
	case <-e.closed:
		return false
	}
}

// A job is the handler's view of the sequences of one request. Only one goroutine may wait for and
// cancel a job.
type job struct {
	engine    *Engine
	sequences []*Sequence
	progress  []atomic.Int64 // per sequence: tokens of each choice; -1 until the prompt has been computed
	wake      chan struct{}  // capacity 1; signals a change of progress
}

// submit adds the sequences to the batch, all or none.
func (e *Engine) submit(sequences []*Sequence) (*job, error) {
	j := &job{engine: e, sequences: sequences, progress: make([]atomic.Int64, len(sequences)), wake: make(chan struct{}, 1)}
	for i, s := range sequences {
		j.progress[i].Store(-1)
		s.Progress = func(generated int) {
			j.progress[i].Store(int64(generated))
			select {
			case j.wake <- struct{}{}:
			default:
			}
		}
	}
	err := errClosed
	e.withBatch(func(b *Batch) {
		for _, s := range sequences {
			if err = b.Add(s); err != nil {
				break
			}
		}
	})
	if err != nil {
		j.cancelRemaining()
		return nil, err
	}
	return j, nil
}

// waitForTokens waits until every choice has more tokens than seen (with -1: until every prompt has
// been computed) and returns their number.
func (j *job) waitForTokens(ctx context.Context, seen int) (int, error) {
	for {
		if err := ctx.Err(); err != nil {
			return seen, err
		}
		if ready := j.minProgress(); ready > seen {
			return ready, nil
		}
		select {
		case <-j.wake:
		case <-ctx.Done():
		case <-j.engine.closed:
			return seen, errClosed
		}
	}
}

func (j *job) minProgress() int {
	lowest := j.progress[0].Load()
	for i := range j.progress {
		lowest = min(lowest, j.progress[i].Load())
	}
	return int(lowest)
}

// cancelRemaining removes incomplete sequences from the batch and returns the number of generated
// tokens of all sequences.
func (j *job) cancelRemaining() (generated int) {
	j.engine.withBatch(func(b *Batch) {
		for _, s := range j.sequences {
			b.Remove(s)
		}
	})
	for i, s := range j.sequences {
		generated += s.Choices * int(max(j.progress[i].Load(), 0))
	}
	return generated
}
