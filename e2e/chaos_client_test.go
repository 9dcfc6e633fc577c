package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"berth/llmserver/simulated"
)

// clientDeadline bounds a request of a client. The queue timeout, the longest SIGSTOP and all
// attempts together take much less: a request that has not ended by then is stuck.
const clientDeadline = 45 * time.Second

// thinkTime bounds the pause between two requests of a client.
const thinkTime = 600 * time.Millisecond

const (
	// Every quiescePeriod no request, reload or fault is started until all active ones have ended.
	// A queued request that misses a free slot would otherwise be served when another request ends
	// or a reload or health check changes something. While quiescing it waits for its queue
	// timeout, which often exceeds quiesceTimeout.
	quiescePeriod  = 7 * time.Second
	quiesceTimeout = 20 * time.Second
)

// errStale reports that a reused connection was closed before the response began: the request raced
// with the close.
var errStale = errors.New("the reused connection was closed")

// chaosClients is a set of clients of all protocols that send requests until stopped.
type chaosClients struct {
	chaos   *chaos
	oracle  *simulated.Engine // an undisturbed engine, for the expected responses
	nonce   atomic.Int64
	stopped atomic.Bool
	running sync.WaitGroup
}

// protocol is the protocol between a client and an ingress.
type protocol string

const (
	http11    protocol = "HTTP/1.1"
	h2c       protocol = "h2c"
	rawHTTP11 protocol = "raw HTTP/1.1, keep-alive"
	rawHTTP10 protocol = "raw HTTP/1.0"
)

// disconnectMode is the kind of a client's disconnect before the end of the response.
type disconnectMode string

const (
	stays     disconnectMode = "stays"
	closes    disconnectMode = "closes"
	halfClose disconnectMode = "half-closes"
	resets    disconnectMode = "resets"
)

// attempt is a request of a client and its result.
type attempt struct {
	protocol        protocol
	url             string // URL of the ingress
	gateway         *gateway
	kills           int64 // number of kills of the ingress before the request
	model           string
	body            string
	want            []byte // body of a complete response
	disconnect      disconnectMode
	disconnectAfter time.Duration // time until the disconnect,
	afterBytes      int           // or number of body bytes before the disconnect, if positive
	session         string
	response        response
	took            time.Duration
	unreachable     bool // connection refused
}

// newChaosClients starts n clients. Their behavior is drawn from the seed.
func newChaosClients(t *testing.T, c *chaos, n int) *chaosClients {
	cs := &chaosClients{chaos: c, oracle: newOracle(t)}
	for k := range n {
		rng := rand.New(rand.NewPCG(c.seed, uint64(1000+k)))
		kind := []protocol{http11, http11, h2c, rawHTTP11, rawHTTP10}[k%5]
		client, raw := newClient(t, kind == h2c), &rawClient{}
		cs.running.Go(func() {
			defer raw.close()
			defer client.CloseIdleConnections()
			for !cs.stopped.Load() {
				c.gate.RLock()
				a := cs.draw(rng, kind)
				began := time.Now()
				if kind == http11 || kind == h2c {
					a.send(client)
				} else {
					raw.send(a)
				}
				a.took = time.Since(began)
				c.gate.RUnlock()
				c.checkAttempt(a)
				time.Sleep(time.Duration(rng.Int64N(int64(thinkTime))))
			}
		})
	}
	return cs
}

// quiescePeriodically quiesces every quiescePeriod until ctx is done, and once after that.
func (cs *chaosClients) quiescePeriodically(ctx context.Context) {
	for pause(ctx, quiescePeriod) {
		cs.quiesce()
	}
	cs.quiesce()
}

// quiesce prevents new requests, reloads and faults until all active ones have ended.
func (cs *chaosClients) quiesce() {
	c := cs.chaos
	timer := time.AfterFunc(quiesceTimeout, func() {
		var pages strings.Builder
		for _, g := range c.gateways {
			_, slots := c.page(g.admin + "/internal/slots")
			_, metrics := c.page(g.admin + "/metrics")
			pages.WriteString(g.name + ": " + slots + linesWithPrefix(metrics, "berth_queue_length", "berth_replica_state", "berth_slots"))
		}
		c.findings.add("requests were still active long after the last was sent", "after %v:\n%s", quiesceTimeout, &pages)
	})
	defer timer.Stop()
	start := time.Now()
	c.gate.Lock()
	c.gate.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.longestQuiesce = max(c.longestQuiesce, time.Since(start))
}

// newOracle starts a fast engine for the expected responses.
func newOracle(t *testing.T) *simulated.Engine {
	oracle := simulated.New(simulated.Config{PrefillTokensPerSecond: 1e9, DecodeStep: 1, DecodeStepPerRequest: 1})
	t.Cleanup(oracle.Close)
	return oracle
}

// draw returns a random request. Prompts are unique and an engine's text depends on the prompt, so
// a response to any other request differs from the expected one.
func (cs *chaosClients) draw(rng *rand.Rand, kind protocol) *attempt {
	a := &attempt{protocol: kind, disconnect: stays, session: fmt.Sprintf("session-%d", rng.IntN(16))}
	g := cs.chaos.gateways[rng.IntN(len(cs.chaos.gateways))]
	a.gateway, a.kills = g, g.kills.Load()
	a.url, a.model = g.url, g.models[rng.IntN(len(g.models))]
	tokens, stream := 1+rng.IntN(60), rng.IntN(4) > 0
	cs.fill(a, strings.Repeat("This is an earlier turn of the conversation. ", rng.IntN(20)), tokens, stream)
	if rng.IntN(10) < 3 {
		a.disconnect = []disconnectMode{closes, halfClose, resets}[rng.IntN(3)]
		if kind == http11 || kind == h2c {
			a.disconnect = closes
		}
		if rng.IntN(2) == 0 {
			a.afterBytes = 1 + rng.IntN(len(a.want))
		} else {
			a.disconnectAfter = time.Duration(rng.Int64N(int64(500 * time.Millisecond)))
		}
	}
	return a
}

// fill sets body and want for a new prompt.
func (cs *chaosClients) fill(a *attempt, context string, tokens int, stream bool) {
	prompt := fmt.Sprintf("%sQuestion %d", context, cs.nonce.Add(1))
	a.body = chatBody(a.model, prompt, tokens, stream)
	w := httptest.NewRecorder()
	cs.oracle.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(chatBody("demo", prompt, tokens, stream))))
	a.want = w.Body.Bytes()
}

// send sends the request with net/http.
func (a *attempt) send(client *http.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), clientDeadline)
	defer cancel()
	if a.disconnect != stays && a.afterBytes == 0 {
		defer time.AfterFunc(a.disconnectAfter, cancel).Stop()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url+"/v1/chat/completions", strings.NewReader(a.body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Session-Id", a.session)
	resp, err := client.Do(req)
	if err != nil {
		a.unreachable = errors.Is(err, syscall.ECONNREFUSED)
		a.response.err = err
		return
	}
	defer resp.Body.Close()
	a.response = response{status: resp.StatusCode, header: resp.Header}
	if a.afterBytes == 0 {
		a.response.body, a.response.err = io.ReadAll(resp.Body)
		return
	}
	a.response.body, a.response.err = io.ReadAll(io.LimitReader(resp.Body, int64(a.afterBytes)))
	if a.response.err == nil && len(a.response.body) == a.afterBytes {
		a.response.err = context.Canceled
	}
}

var cachedTokens = regexp.MustCompile(`"cached_tokens":\d+`)

// normalized returns the body without the number of cached tokens, which depends on the engine's
// cache.
func (a *attempt) normalized(body []byte) []byte {
	return cachedTokens.ReplaceAll(body, []byte(`"cached_tokens":0`))
}

func (a *attempt) String() string {
	return fmt.Sprintf("%s, client %s after %v or %d bytes, %s, took %v\nrequest %s\nresponse %v\nwant %s", a.protocol, a.disconnect, a.disconnectAfter.Round(time.Millisecond), a.afterBytes,
		a.url, a.took.Round(time.Millisecond), tail(a.body, 200), a.response, tail(string(a.want), 200))
}
