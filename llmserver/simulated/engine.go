package simulated

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Config describes a simulated engine. Fields that are zero (or less) take the default named beside them.
type Config struct {
	ID    string // "simulated"; sent with every answer as x-simulated-replica
	Model string // "demo"; the only model served

	PrefillTokensPerSecond float64       // 8000
	DecodeStep             time.Duration // 6 ms
	DecodeStepPerRequest   time.Duration // 0.35 ms

	KVCacheTokens int // 524288, in blocks of 16; also the longest prompt with its answers
	MaxRunning    int // 256 prompts computed at once; the others wait
	MaxOngoing    int // no bound; more requests in flight than that, waiting ones included, are refused with 503
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

// Engine is a running simulated engine. All methods are safe for concurrent use.
type Engine struct {
	config   Config
	batch    *Batch            // run's alone
	commands chan func(*Batch) // for run
	closing  chan struct{}
	closed   chan struct{} // run has ended
	close    func()

	counts      requestCounts
	faults      faultState
	connections atomic.Int64
}

// New starts an engine. Close must be called to end it.
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

// Close ends the engine and waits for its goroutine. Requests still in flight break off. A second call waits too.
func (e *Engine) Close() {
	e.close()
	<-e.closed
}

// catchUp is how late a step may be and still be followed as if it had been on time.
const maxCatchUp = 20 * time.Millisecond

// run owns the batch. It alone decides when a step ends; commands may shorten the step in progress.
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
			// A command may have changed the step's length, but it cannot end the step in the past.
			if changed := began.Add(e.scaleStep(e.batch.Step())); !changed.Equal(ends) {
				ends = later(changed, now)
			}
		} else if e.batch.Begin() {
			stepping = true
			// A step follows the one before it without a gap, so that late timers do not add up; a machine that
			// cannot keep up makes the engine slower, it does not make it rush.
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

// do has run call f with the batch and waits for it. It returns false if the engine is closed and f was not called.
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

// work is the sequences of one request as its handler sees them. One goroutine waits and stops.
type job struct {
	engine    *Engine
	sequences []*Sequence
	progress  []atomic.Int64 // per sequence: tokens of each answer; -1 until the prompt has been computed
	wake      chan struct{}  // capacity 1: it says "look again", so one too many is none too few
}

// start puts the sequences in the batch, all or none.
func (e *Engine) submit(sequences []*Sequence) (*job, error) {
	w := &job{engine: e, sequences: sequences, progress: make([]atomic.Int64, len(sequences)), wake: make(chan struct{}, 1)}
	for i, s := range sequences {
		w.progress[i].Store(-1)
		s.Progress = func(generated int) {
			w.progress[i].Store(int64(generated))
			select {
			case w.wake <- struct{}{}:
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
		w.cancelRemaining()
		return nil, err
	}
	return w, nil
}

// wait returns once every answer has more tokens than seen (-1: once every prompt has been computed), and how many.
func (w *job) waitForTokens(ctx context.Context, seen int) (int, error) {
	for {
		if err := ctx.Err(); err != nil {
			return seen, err
		}
		if ready := w.minProgress(); ready > seen {
			return ready, nil
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
		case <-w.engine.closed:
			return seen, errClosed
		}
	}
}

func (w *job) minProgress() int {
	least := w.progress[0].Load()
	for i := range w.progress {
		least = min(least, w.progress[i].Load())
	}
	return int(least)
}

// stop takes what is not complete out of the batch and returns how many tokens have been generated in all.
func (w *job) cancelRemaining() (generated int) {
	w.engine.withBatch(func(b *Batch) {
		for _, s := range w.sequences {
			b.Remove(s)
		}
	})
	for i, s := range w.sequences {
		generated += s.Answers * int(max(w.progress[i].Load(), 0))
	}
	return generated
}
