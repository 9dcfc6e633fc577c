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

// testRequest is a request body and the expected response body.
type testRequest struct {
	body string
	want []byte
}

// newTestRequests returns n requests with the responses of an undisturbed engine.
func newTestRequests(t *testing.T, n int) (all []testRequest) {
	engine, client := startEngines(t, 1, simulated.Config{})[0], newClient(t, false)
	for i := range n { // shorter than a cache block, so that usage is the same on all engines
		q := testRequest{body: chatBody("demo", fmt.Sprintf("Story %d", i), 1+i%32, i%4 > 0)}
		a := chat(t.Context(), client, engine.URL(), q.body)
		if !a.isComplete() {
			t.Fatalf("the engine's own response: %v", a)
		}
		q.want = a.body
		all = append(all, q)
	}
	return all
}

// stormClients is a set of clients that share a pool of requests.
type stormClients struct {
	t           *testing.T
	requests    []testRequest
	ingressURLs []string // base URLs of the ingresses
	remaining   atomic.Int64
	excluded    []atomic.Bool // ingresses that get no new requests, by index
	running     sync.WaitGroup

	complete, refused, truncated, aborted atomic.Int64
}

// startStormClients starts clients that send total requests altogether. Their behavior is drawn
// from the seed.
func startStormClients(t *testing.T, clients, total int, seed uint64, ingressURLs ...string) *stormClients {
	c := &stormClients{t: t, requests: newTestRequests(t, 64), ingressURLs: ingressURLs, excluded: make([]atomic.Bool, len(ingressURLs))}
	c.remaining.Store(int64(total))
	for k := range clients {
		client, rng := newClient(t, k/2%2 == 1), rand.New(rand.NewPCG(seed, uint64(k)))
		c.running.Go(func() {
			for i := k; c.remaining.Add(-1) >= 0; i++ {
				for c.excluded[i%len(ingressURLs)].Load() {
					i++
				}
				c.sendRequest(client, ingressURLs[i%len(ingressURLs)], rng)
			}
		})
	}
	t.Cleanup(c.stop)
	return c
}

// stop prevents new requests and waits for the last responses.
func (c *stormClients) stop() {
	c.remaining.Store(0)
	c.running.Wait()
}

// sendRequest sends one request. 30 % of the clients disconnect before the end of the response:
// some after a random time, in any phase of the request, others after a number of bytes.
func (c *stormClients) sendRequest(client *http.Client, url string, rng *rand.Rand) {
	q := c.requests[rng.IntN(len(c.requests))]
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	defer cancel()
	limit := int64(1 << 30)
	aborts := rng.IntN(10) < 3
	switch {
	case aborts && rng.IntN(2) == 0:
		limit = rng.Int64N(int64(len(q.want)))
	case aborts:
		defer time.AfterFunc(time.Duration(rng.Int64N(int64(50*time.Millisecond))), cancel).Stop()
	}
	resp, err := postChat(ctx, client, url, q.body)
	if err != nil {
		c.checkResponse(q, response{err: err}, aborts)
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	if int64(len(body)) == limit {
		err = context.Canceled
	}
	c.checkResponse(q, response{resp.StatusCode, resp.Header, body, err}, aborts)
}

// checkResponse checks that a response that looks complete has the expected body, that a truncated
// one is a prefix of the expected body followed by an error, and that a refusal has an error code.
func (c *stormClients) checkResponse(q testRequest, a response, aborts bool) {
	switch {
	case a.err == nil && a.status == http.StatusOK:
		c.complete.Add(1)
		if !bytes.Equal(a.body, q.want) {
			c.t.Errorf("request %s\ngot %v\nwant %s", q.body, a, q.want)
		}
	case a.err == nil:
		c.refused.Add(1)
		if a.status != http.StatusTooManyRequests && a.status != http.StatusBadGateway && a.status != http.StatusServiceUnavailable || a.errorCode() == "" {
			c.t.Errorf("request %s\ngot an unexpected refusal: %v", q.body, a)
		}
	default:
		if aborts {
			c.aborted.Add(1)
		} else {
			c.truncated.Add(1)
		}
		body := a.body
		// A client may disconnect within the error event.
		if i := bytes.LastIndex(body, []byte("data: {\"error\"")); i >= 0 && (aborts || lastErrorCode(body) == "upstream_broken") {
			body = body[:i]
		}
		if a.status == http.StatusOK && !bytes.HasPrefix(q.want, body) {
			c.t.Errorf("request %s\ntruncated response %v\nis not a prefix of %s", q.body, a, q.want)
		}
	}
}

func (c *stormClients) String() string {
	return fmt.Sprintf("%d responses complete, %d refused, %d truncated, %d clients disconnected", c.complete.Load(), c.refused.Load(), c.truncated.Load(), c.aborted.Load())
}
