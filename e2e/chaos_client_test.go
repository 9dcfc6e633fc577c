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

// clientDeadline bounds a request, as its client sees it. It is far beyond what waiting in a queue,
// the longest SIGSTOP and all attempts take together: a request that is not over by then is stuck.
const clientDeadline = 45 * time.Second

// thinkTime bounds the pause between two requests of a client.
const thinkTime = 600 * time.Millisecond

const (
	// Every lullPeriod nothing new is begun, no request, no reload and no disturbance, until nothing is
	// under way. A request that waits for a slot and was forgotten is served when the next one ends,
	// or when a reload or a health check changes something, as long as such things happen; in a
	// lull it has to wait for its queue timeout, which is longer than lullBound as often as not.
	quiescePeriod  = 7 * time.Second
	quiesceTimeout = 20 * time.Second
)

// errStale is the end of a kept connection before the response began: the request raced with its close.
var errStale = errors.New("the kept connection was closed")

// chaosClients are clients of every kind that ask until they are stopped.
type chaosClients struct {
	chaos   *chaos
	oracle  *simulated.Engine // an engine that nobody disturbs, for the right response to each request
	nonce   atomic.Int64
	stopped atomic.Bool
	running sync.WaitGroup
}

// protocol is how a client speaks to an ingress.
type protocol string

const (
	http11    protocol = "HTTP/1.1"
	h2c       protocol = "h2c"
	rawHTTP11 protocol = "raw HTTP/1.1, connection kept"
	rawHTTP10 protocol = "raw HTTP/1.0"
)

// leaving is how a client that does not stay for the whole response leaves.
type disconnectMode string

const (
	stays     disconnectMode = "stays"
	closes    disconnectMode = "leaves"
	halfClose disconnectMode = "half-closes"
	resets    disconnectMode = "resets"
)

// attempt is a request of a client and what it makes of it.
type attempt struct {
	protocol        protocol
	url             string // URL of the ingress
	gateway         *gateway
	kills           int64 // that the ingress had suffered before the request
	model           string
	body            string
	want            []byte // of the body of a whole response
	disconnect      disconnectMode
	disconnectAfter time.Duration // it leaves then,
	afterBytes      int           // or with so many bytes of the body in hand if that is positive
	session         string
	response        response
	took            time.Duration
	unreachable     bool // nobody listened
}

// newChaosClients starts n clients. What they do is drawn from the seed.
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

// lulls has the clients pause again and again until ctx is done, and once more after that.
func (cs *chaosClients) quiescePeriodically(ctx context.Context) {
	for pause(ctx, quiescePeriod) {
		cs.quiesce()
	}
	cs.quiesce()
}

// lull has nothing new begun until nothing is under way.
func (cs *chaosClients) quiesce() {
	c := cs.chaos
	late := time.AfterFunc(quiesceTimeout, func() {
		var pages strings.Builder
		for _, g := range c.gateways {
			_, slots := c.page(g.admin + "/internal/slots")
			_, metrics := c.page(g.admin + "/metrics")
			pages.WriteString(g.name + ": " + slots + linesWithPrefix(metrics, "berth_queue_length", "berth_replica_state", "berth_slots"))
		}
		c.findings.add("requests were still under way long after the last was sent", "after %v:\n%s", quiesceTimeout, &pages)
	})
	defer late.Stop()
	began := time.Now()
	c.gate.Lock()
	c.gate.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.longestQuiesce = max(c.longestQuiesce, time.Since(began))
}

func newOracle(t *testing.T) *simulated.Engine {
	oracle := simulated.New(simulated.Config{PrefillTokensPerSecond: 1e9, DecodeStep: 1, DecodeStepPerRequest: 1})
	t.Cleanup(oracle.Close)
	return oracle
}

// draw makes up a request. Each has a prompt of its own, and an engine's words depend on the prompt,
// so that a response to any other request is not taken for the right one.
func (cs *chaosClients) draw(rng *rand.Rand, kind protocol) *attempt {
	a := &attempt{protocol: kind, disconnect: stays, session: fmt.Sprintf("session-%d", rng.IntN(16))}
	g := cs.chaos.gateways[rng.IntN(len(cs.chaos.gateways))]
	a.gateway, a.kills = g, g.kills.Load()
	a.url, a.model = g.url, g.models[rng.IntN(len(g.models))]
	tokens, stream := 1+rng.IntN(60), rng.IntN(4) > 0
	cs.fill(a, strings.Repeat("We have talked of this before. ", rng.IntN(20)), tokens, stream)
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

// fill sets body and want for a prompt that nobody has had yet.
func (cs *chaosClients) fill(a *attempt, context string, tokens int, stream bool) {
	prompt := fmt.Sprintf("%sQuestion %d", context, cs.nonce.Add(1))
	a.body = chatBody(a.model, prompt, tokens, stream)
	w := httptest.NewRecorder()
	cs.oracle.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(chatBody("demo", prompt, tokens, stream))))
	a.want = w.Body.Bytes()
}

// send sends the request by net/http.
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

// normalized is a body without what depends on the engine's cache.
func (a *attempt) normalized(body []byte) []byte {
	return cachedTokens.ReplaceAll(body, []byte(`"cached_tokens":0`))
}

func (a *attempt) String() string {
	return fmt.Sprintf("%s, client %s after %v or %d bytes, %s, took %v\nrequest %s\nresponse %v\nwant %s", a.protocol, a.disconnect, a.disconnectAfter.Round(time.Millisecond), a.afterBytes,
		a.url, a.took.Round(time.Millisecond), tail(a.body, 200), a.response, tail(string(a.want), 200))
}
