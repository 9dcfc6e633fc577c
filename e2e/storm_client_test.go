package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth/llmserver/simulated"
)

// question is a request and the one right answer to it.
type question struct {
	body string
	want []byte
}

// questions asks an engine that nobody disturbs for n different answers.
func questions(t *testing.T, n int) (all []question) {
	engine, client := engines(t, 1, simulated.Config{})[0], newClient(t, false)
	for i := range n { // too short for a block of the cache, so that usage is the same everywhere
		q := question{body: ask("demo", fmt.Sprintf("Story %d", i), 1+i%32, i%4 > 0)}
		a := chat(t.Context(), client, engine.URL(), q.body)
		if !a.complete() {
			t.Fatalf("the engine itself answered %v", a)
		}
		q.want = a.body
		all = append(all, q)
	}
	return all
}

// crowd is many clients with one stock of questions between them.
type crowd struct {
	t         *testing.T
	questions []question
	entries   []string // base URLs of the ingresses
	left      atomic.Int64
	closed    []atomic.Bool // entries that no new request is to go to
	asking    sync.WaitGroup

	complete, refused, broken, aborted atomic.Int64
}

// gather has so many clients ask so many times in all. What they do is drawn from the seed.
func gather(t *testing.T, clients, times int, seed uint64, entries ...string) *crowd {
	c := &crowd{t: t, questions: questions(t, 64), entries: entries, closed: make([]atomic.Bool, len(entries))}
	c.left.Store(int64(times))
	for k := range clients {
		client, rng := newClient(t, k/2%2 == 1), rand.New(rand.NewPCG(seed, uint64(k)))
		c.asking.Go(func() {
			for entry := k; c.left.Add(-1) >= 0; entry++ {
				for c.closed[entry%len(entries)].Load() {
					entry++
				}
				c.ask(client, entries[entry%len(entries)], rng)
			}
		})
	}
	t.Cleanup(c.disperse)
	return c
}

// disperse has no more asked and waits for the last answers.
func (c *crowd) disperse() {
	c.left.Store(0)
	c.asking.Wait()
}

// ask asks one question. Three in ten clients do not stay for the whole of the answer: some leave at a time, wherever the
// request is then, others with so many bytes in hand.
func (c *crowd) ask(client *http.Client, entry string, rng *rand.Rand) {
	q := c.questions[rng.IntN(len(c.questions))]
	ctx, leave := context.WithCancel(context.WithoutCancel(c.t.Context()))
	defer leave()
	stay := int64(1 << 30)
	aborts := rng.IntN(10) < 3
	switch {
	case aborts && rng.IntN(2) == 0:
		stay = rng.Int64N(int64(len(q.want)))
	case aborts:
		defer time.AfterFunc(time.Duration(rng.Int64N(int64(50*time.Millisecond))), leave).Stop()
	}
	resp, err := send(ctx, client, entry, q.body)
	if err != nil {
		c.judge(q, answer{err: err}, aborts)
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, stay))
	if int64(len(body)) == stay {
		err = context.Canceled
	}
	c.judge(q, answer{resp.StatusCode, resp.Header, body, err}, aborts)
}

// judge sees that an answer that looks complete is the right one, and that whatever else there is of one is honest: the
// beginning of the right one with an error after it, or a refusal that says so.
func (c *crowd) judge(q question, a answer, aborts bool) {
	switch {
	case a.err == nil && a.status == http.StatusOK:
		c.complete.Add(1)
		if !bytes.Equal(a.body, q.want) {
			c.t.Errorf("%s\nwas answered %v\nwant %s", q.body, a, q.want)
		}
	case a.err == nil:
		c.refused.Add(1)
		if a.status != http.StatusTooManyRequests && a.status != http.StatusBadGateway && a.status != http.StatusServiceUnavailable || a.problem() == "" {
			c.t.Errorf("%s\nwas refused with %v", q.body, a)
		}
	default:
		if aborts {
			c.aborted.Add(1)
		} else {
			c.broken.Add(1)
		}
		said := a.body
		// A client that leaves may do so within the error event.
		if i := bytes.LastIndex(said, []byte("data: {\"error\"")); i >= 0 && (aborts || lastErrorCode(said) == "upstream_broken") {
			said = said[:i]
		}
		if a.status == http.StatusOK && !bytes.HasPrefix(q.want, said) {
			c.t.Errorf("%s\nbroke off after %v\nwhich is not the beginning of %s", q.body, a, q.want)
		}
	}
}

func (c *crowd) String() string {
	return fmt.Sprintf("%d answers complete, %d refused, %d broken off, %d clients left", c.complete.Load(), c.refused.Load(), c.broken.Load(), c.aborted.Load())
}
