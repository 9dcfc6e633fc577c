package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth/llmserver/simulated"
)

// The chaos test runs each engine as a process of its own: this test binary, started again with
// these variables set. TestMain then calls chaosEngine in place of the tests.
const (
	engineAddressEnv = "BERTH_CHAOS_ENGINE"   // HOST:PORT to listen on
	engineLimitEnv   = "BERTH_CHAOS_CAPACITY" // file with the highest number of requests allowed at once
)

const (
	// decodeStep is how long an engine takes per token.
	decodeStep = 10 * time.Millisecond
	// windDown is how long an engine works on after the last event of a stream, and after its peer
	// has disconnected. Real engines do both; whoever gives a slot away before they end puts one
	// request too many into the engine, and is seen to.
	windDown = 20 * time.Millisecond
	// lingerBound is how long a request counts after its peer has closed the connection. berth waits
	// at most 250 ms for the engine to close its side before it gives the slot away; the rest is
	// tolerance for the order in which berth starts its timer and sends its FIN. The bound also
	// covers the requests of an agent or ingress that was killed: its successor knows nothing of
	// them and is started later than that.
	lingerBound = 200 * time.Millisecond
	// sampleEvery is how often the engine looks at whether its peers are still connected.
	sampleEvery = 10 * time.Millisecond
)

const overCapacity = "OVER CAPACITY: "

// engineCommand returns the command that runs an engine at an address.
func engineCommand(address, capacityFile string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), engineAddressEnv+"="+address, engineLimitEnv+"="+capacityFile)
	return cmd
}

// chaosEngine runs an engine until SIGTERM and returns the exit status of the process.
func chaosEngine(address, capacityFile string) int {
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	engine := simulated.New(simulated.Config{PrefillTokensPerSecond: 1e6, DecodeStep: decodeStep, DecodeStepPerRequest: time.Microsecond})
	defer engine.Close()
	probe := &concurrencyProbe{capacityFile: capacityFile, held: make(map[*heldRequest]struct{})}
	server := &http.Server{
		Handler:     probe.watch(engine.Handler()),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	go server.Serve(listener)
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for stop.Err() == nil {
		select {
		case <-stop.Done():
		case <-ticker.C:
			probe.mu.Lock()
			probe.sample(time.Now())
			probe.mu.Unlock()
		}
	}
	ctx, giveUp := context.WithTimeout(context.Background(), 5*time.Second)
	defer giveUp()
	server.Shutdown(ctx)
	server.Close()
	return 0
}

// concurrencyProbe counts the requests that an engine works on and reports on stderr each one that
// enters above capacity.
//
// A request counts from its arrival until its response body is about to end: for a stream that is
// when the handler returns, just before the last chunk; for any other response the write of the
// body. One whose peer has closed the connection counts for lingerBound longer. When the peer closed
// is known only to lie between two samples; the earlier end is taken, so that an engine that was
// stopped, or a machine that stood still, makes the probe lenient and never wrong. Requests after
// [DONE], or without a peer, are reported as ending: where they alone are too many, a slot was given
// away before the engine had let go of it.
type concurrencyProbe struct {
	capacityFile string

	mu      sync.Mutex
	held    map[*heldRequest]struct{}
	sampled time.Time
}

type heldRequest struct {
	conn      net.Conn
	arrived   time.Time
	done      bool      // [DONE] was written
	goneSince time.Time // the peer closed at that time or later; zero while it is connected
}

func (p *concurrencyProbe) watch(engine http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/chaos":
			p.report(w)
		case r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/v1/"):
			held := p.enter(r.Context().Value(connKey{}).(net.Conn))
			defer p.leave(held)
			tracked := &trackedWriter{ResponseWriter: w, probe: p, held: held}
			defer tracked.windDown()
			engine.ServeHTTP(tracked, r)
		default:
			engine.ServeHTTP(w, r)
		}
	})
}

// enter counts a request in. One whose peer is gone already is of no more work to anybody.
func (p *concurrencyProbe) enter(conn net.Conn) *heldRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	r := &heldRequest{conn: conn, arrived: now}
	if peerClosed(conn) {
		return r
	}
	p.sample(now)
	p.held[r] = struct{}{}
	working, ending, text := 0, 0, ""
	for h := range p.held {
		if h.goneSince.IsZero() || now.Sub(h.goneSince) < lingerBound {
			working++
			text += "; " + h.describe(now)
			if h.done || !h.goneSince.IsZero() {
				ending++
			}
		}
	}
	if limit := p.limit(); working > limit {
		fmt.Fprintf(os.Stderr, "%s%d requests at once, %d of them ending, %d allowed%s\n", overCapacity, working, ending, limit, text)
	}
	return r
}

func (p *concurrencyProbe) leave(r *heldRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.held, r)
}

// sample notes which peers have closed their connections since the last sample. The caller holds mu.
func (p *concurrencyProbe) sample(now time.Time) {
	for h := range p.held {
		if h.goneSince.IsZero() && peerClosed(h.conn) {
			h.goneSince = p.sampled
			if h.arrived.After(p.sampled) {
				h.goneSince = h.arrived
			}
		}
	}
	p.sampled = now
}

func (p *concurrencyProbe) limit() int {
	text, err := os.ReadFile(p.capacityFile)
	if err != nil {
		panic(err)
	}
	n, err := strconv.Atoi(string(text))
	if err != nil {
		panic(err)
	}
	return n
}

func (h *heldRequest) describe(now time.Time) string {
	text := fmt.Sprintf("here for %v", now.Sub(h.arrived).Round(time.Millisecond))
	if h.done {
		text += ", [DONE] sent"
	}
	if !h.goneSince.IsZero() {
		text += fmt.Sprintf(", peer gone for at most %v", now.Sub(h.goneSince).Round(time.Millisecond))
	}
	return text
}

// engineState is what an engine reports of itself.
type engineState struct{ Working, Goroutines int }

func (p *concurrencyProbe) report(w http.ResponseWriter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	json.NewEncoder(w).Encode(engineState{len(p.held), runtime.NumGoroutine()})
}

// trackedWriter tells the probe how far a response has come.
type trackedWriter struct {
	http.ResponseWriter
	probe *concurrencyProbe
	held  *heldRequest
	ended bool
}

func (w *trackedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *trackedWriter) Write(b []byte) (int, error) {
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
		w.ended = true
		w.probe.leave(w.held) // whoever reads the whole body must find it gone
	} else if bytes.HasSuffix(b, []byte("data: [DONE]\n\n")) {
		w.probe.mu.Lock()
		w.held.done = true
		w.probe.mu.Unlock()
	}
	return w.ResponseWriter.Write(b)
}

// windDown works on for a while after a stream or a disconnect.
func (w *trackedWriter) windDown() {
	if !w.ended {
		time.Sleep(windDown)
	}
}
