package ingress

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/config"
	"berth/routers"
)

// front is a server under test with clients of it. When the test ends, every slot and every byte
// must be back, and nothing may have been logged as an error unless the test has looked at the log.
type front struct {
	*Server
	t      *testing.T
	h1, h2 *http.Client
	log    *record
	drain  context.CancelFunc
	served chan error // what Serve returned
}

// record is a log to look at.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

// take returns what was logged since the last take.
func (r *record) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.text.Reset()
	return r.text.String()
}

// serve starts a server with the models and the limits that most tests need.
func serve(t *testing.T, models ...config.Model) *front {
	t.Helper()
	return serveConfig(t, configured(models...))
}

func serveConfig(t *testing.T, c *config.Config) *front {
	t.Helper()
	return serveBy(t, func(log *slog.Logger) (*Server, error) { return New(c, log) })
}

// serveBy starts the server that is made.
func serveBy(t *testing.T, create func(*slog.Logger) (*Server, error)) *front {
	t.Helper()
	f := &front{t: t, log: new(record), served: make(chan error, 1)}
	var err error
	if f.Server, err = create(slog.New(slog.NewTextHandler(f.log, nil))); err != nil {
		t.Fatal(err)
	}
	ctx, drain := context.WithCancel(context.Background())
	f.drain = drain
	f.h1, f.h2 = clientOf(t, false), clientOf(t, true)
	go func() {
		f.served <- f.Serve(ctx)
		close(f.served)
	}()
	t.Cleanup(f.end)
	return f
}

// end closes the server and checks that nothing was left behind.
func (f *front) end() {
	replicas := f.registry.allReplicas()
	f.drain()
	receive(f.t, f.served)
	f.Close()
	for _, r := range replicas {
		if u := r.Usage(); u.Reserved+u.Running != 0 || len(r.Slots()) != 0 {
			f.t.Errorf("replica %s still holds %+v", r.ID(), u)
		}
	}
	if held := f.budget.Held(); held != 0 {
		f.t.Errorf("%d bytes of bodies are still held", held)
	}
	if log := f.log.take(); strings.Contains(log, "level=ERROR") {
		f.t.Errorf("logged:\n%s", log)
	}
}

func configured(models ...config.Model) *config.Config {
	return &config.Config{
		HTTP: config.HTTP{
			Address:          "127.0.0.1:0",
			MaxBodyBytes:     1 << 20,
			MaxBufferedBytes: 8 << 20,
			BodyTimeout:      time.Minute,
		},
		Admin:  config.Admin{Address: "127.0.0.1:0"},
		Models: models,
	}
}

// modelOn is a model whose replicas, of two slots each, are called a, b, c and so on. They are
// never probed.
func modelOn(id string, urls ...string) config.Model {
	m := config.Model{
		ID:                id,
		ServedName:        id,
		MaxQueuedRequests: 8,
		QueueTimeout:      time.Minute,
		Router:            config.Router{Class: "RoundRobinRouter"},
		ConnectTimeout:    5 * time.Second,
		MaxAttempts:       3,
	}
	for i, url := range urls {
		m.Replicas = append(m.Replicas, config.Replica{ID: string(rune('a' + i)), URL: url, MaxOngoingRequests: 2})
	}
	return m
}

// narrow gives each replica of m one slot.
func narrow(m config.Model) config.Model {
	for i := range m.Replicas {
		m.Replicas[i].MaxOngoingRequests = 1
	}
	return m
}

// upstream is the URL of a replica that answers with h.
func upstream(t *testing.T, h http.HandlerFunc) string {
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// refusing is the URL of a replica that takes no connection; each number is another.
func refusing(n int) string { return fmt.Sprintf("http://127.0.0.%d:1", n) }

func ok(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }

// gate is a replica that holds each request until it is let go or left.
type gate struct {
	url     string
	arrived chan *http.Request
	open    chan struct{} // one element lets one request go
	left    chan struct{} // one element for each request whose context ended
}

func gated(t *testing.T) *gate {
	g := &gate{arrived: make(chan *http.Request, 100), open: make(chan struct{}, 100), left: make(chan struct{}, 100)}
	g.url = upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		g.arrived <- r
		select {
		case <-g.open:
			ok(w, r)
		case <-r.Context().Done():
			g.left <- struct{}{}
		}
	})
	return g
}

// metric scrapes the value of a series, written as in the exposition.
func (f *front) metric(series string) float64 {
	f.t.Helper()
	value, ok := f.series(series)
	if !ok {
		f.t.Errorf("there is no %s", series)
	}
	return value
}

func (f *front) series(series string) (float64, bool) {
	f.t.Helper()
	scrape := f.get("/metrics")
	if scrape.StatusCode != http.StatusOK {
		f.t.Fatalf("a scrape got %d %v: %s", scrape.StatusCode, scrape.err, scrape.body)
	}
	for line := range strings.Lines(scrape.body) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), series+" "); ok {
			value, err := strconv.ParseFloat(rest, 64)
			if err != nil {
				f.t.Fatal(err)
			}
			return value, true
		}
	}
	return 0, false
}

// eventually waits for what other goroutines are about to do.
func (f *front) eventually(what string, cond func() bool) {
	f.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	giveUp := time.After(10 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-giveUp:
			f.t.Fatalf("never: %s", what)
		}
	}
}

// idle waits until no slot is held any more.
func (f *front) idle() {
	f.t.Helper()
	f.eventually("every slot is back", func() bool {
		for _, r := range f.registry.allReplicas() {
			if r.Load() > 0 {
				return false
			}
		}
		return true
	})
}

// turn has the round robin of a model begin with its first replica.
func (f *front) turn(model string) {
	f.t.Helper()
	m := f.registry.table.Load().findModel(model)
	for {
		sel, err := m.router.Choose(f.t.Context(), &routers.Payload{})
		if err != nil {
			f.t.Fatal(err)
		}
		defer sel.Release()
		if sel.Replica() == m.replicas[len(m.replicas)-1] {
			return
		}
	}
}

func (f *front) waiting(model string, n int) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("%d requests wait for %s", n, model), func() bool {
		return f.registry.table.Load().findModel(model).router.QueueLength() == n
	})
}

// receive waits for something that must come.
func receive[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}
