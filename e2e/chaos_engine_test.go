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
	// decodeStep is the engine's time per token.
	decodeStep = 10 * time.Millisecond
	// windDown is the time for which an engine continues to work after the last event of a stream
	// and after a disconnect, like real engines. A slot released earlier than that exceeds the
	// engine's capacity, which the probe detects.
	windDown = 20 * time.Millisecond
	// lingerBound is the time for which a request counts after its peer has closed the connection.
	// berth waits at most 250 ms for the engine to close its side before the slot is released; the
	// difference is a tolerance for the order of starting the timer and sending the FIN. The bound
	// also covers the requests of a killed agent or ingress: the next process does not know them
	// and is started later than that.
	lingerBound = 200 * time.Millisecond
	// sampleEvery is the interval between checks for closed connections.
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
	probe := &concurrencyProbe{capacityFile: capacityFile, active: make(map[*heldRequest]struct{})}
	server := &http.Server{
		Handler:     probe.wrap(engine.Handler()),
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

// concurrencyProbe counts an engine's concurrent requests and reports each request that arrives
// above capacity on stderr.
//
// A request counts from its arrival until its response body is about to end: for a stream until the
// handler returns, just before the last chunk, and otherwise until the write of the body. A request
// whose peer has closed the connection counts for lingerBound longer. The time of the close is only
// known to lie between two samples. The probe uses the earlier one, so a stopped engine or a
// stalled machine makes the probe lenient and never causes a false report. Requests after [DONE] or
// without a peer are reported as ending: if only these exceed the capacity, a slot was released
// before the engine had finished the request.
type concurrencyProbe struct {
	capacityFile string

	mu      sync.Mutex
	active  map[*heldRequest]struct{}
	sampled time.Time
}

type heldRequest struct {
	conn      net.Conn
	arrived   time.Time
	done      bool      // [DONE] was written
	goneSince time.Time // the peer closed at that time or later; zero while it is connected
}

// wrap returns a handler that counts the requests to the engine and serves GET /chaos.
func (p *concurrencyProbe) wrap(engine http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/chaos":
			p.report(w)
		case r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/v1/"):
			req := p.addRequest(r.Context().Value(connKey{}).(net.Conn))
			defer p.removeRequest(req)
			tracked := &trackedWriter{ResponseWriter: w, probe: p, request: req}
			defer tracked.windDown()
			engine.ServeHTTP(tracked, r)
		default:
			engine.ServeHTTP(w, r)
		}
	})
}

// addRequest starts counting a request, unless its peer has already closed the connection.
func (p *concurrencyProbe) addRequest(conn net.Conn) *heldRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	r := &heldRequest{conn: conn, arrived: now}
	if peerClosed(conn) {
		return r
	}
	p.sample(now)
	p.active[r] = struct{}{}
	working, ending, text := 0, 0, ""
	for h := range p.active {
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

func (p *concurrencyProbe) removeRequest(r *heldRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.active, r)
}

// sample records the connections closed by their peers since the last sample. The caller holds mu.
func (p *concurrencyProbe) sample(now time.Time) {
	for h := range p.active {
		if h.goneSince.IsZero() && peerClosed(h.conn) {
			h.goneSince = p.sampled
			if h.arrived.After(p.sampled) {
				h.goneSince = h.arrived
			}
		}
	}
	p.sampled = now
}

// limit reads the current capacity from the file.
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
	text := fmt.Sprintf("active for %v", now.Sub(h.arrived).Round(time.Millisecond))
	if h.done {
		text += ", [DONE] sent"
	}
	if !h.goneSince.IsZero() {
		text += fmt.Sprintf(", peer gone for at most %v", now.Sub(h.goneSince).Round(time.Millisecond))
	}
	return text
}

// engineState is the response of GET /chaos.
type engineState struct{ Working, Goroutines int }

func (p *concurrencyProbe) report(w http.ResponseWriter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	json.NewEncoder(w).Encode(engineState{len(p.active), runtime.NumGoroutine()})
}

// trackedWriter reports the progress of a response to the probe.
type trackedWriter struct {
	http.ResponseWriter
	probe   *concurrencyProbe
	request *heldRequest
	ended   bool
}

func (w *trackedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *trackedWriter) Write(b []byte) (int, error) {
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
		w.ended = true
		w.probe.removeRequest(w.request) // before the reader of the body can send the next request
	} else if bytes.HasSuffix(b, []byte("data: [DONE]\n\n")) {
		w.probe.mu.Lock()
		w.request.done = true
		w.probe.mu.Unlock()
	}
	return w.ResponseWriter.Write(b)
}

// windDown continues to work for the time windDown after a stream or a disconnect.
func (w *trackedWriter) windDown() {
	if !w.ended {
		time.Sleep(windDown)
	}
}
