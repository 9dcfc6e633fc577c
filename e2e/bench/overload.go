package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// The workload overload: engines with few slots and slow responses, so that the engines are the
// limit and not the CPU, and clients that leave after five times the mean service time.
const (
	overloadEngines  = 4
	overloadSlots    = 12 // of each engine; further requests wait in the engine, in order of arrival
	overloadGap      = 50 * time.Millisecond
	overloadTokens   = 20 // after the first one, on average; from half of that to half more
	overloadService  = overloadTokens * overloadGap
	overloadPatience = 5 * overloadService
	overloadCapacity = overloadEngines * overloadSlots * float64(time.Second) / float64(overloadService)
	overloadWarmUp   = 20 * time.Second
)

// overloadMultiples are the offered loads, in multiples of the capacity.
var overloadMultiples = []float64{0.5, 1, 1.5, 2, 4}

// slotEngine is an HTTP handler for streamed chat requests with a bounded number of slots.
type slotEngine struct{ slots chan struct{} }

func (e slotEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	switch {
	case strings.HasSuffix(r.URL.Path, "/models"):
		io.WriteString(w, `{"object":"list","data":[{"id":"bench","object":"model"}]}`)
		return
	case r.Method != http.MethodPost:
		return
	}
	select {
	case e.slots <- struct{}{}:
	case <-r.Context().Done():
		return
	}
	defer func() { <-e.slots }()
	w.Header().Set("Content-Type", "text/event-stream")
	writeEvents(w, r, chatRequest{MaxTokens: 1 + overloadTokens/2 + rand.IntN(overloadTokens+1), GapMS: int(overloadGap.Milliseconds()), FirstMS: int(overloadGap.Milliseconds())})
}

// overloadTarget is a proxy with engines of its own.
type overloadTarget struct {
	*target
	engines []*http.Server
}

// builder returns the command line of a proxy for the engines, with an address for requests and
// another one for the admin listener or metrics.
type builder func(address, second string, engines []string) (command []string, err error)

// newOverloadTarget starts engines and returns a proxy for them.
func newOverloadTarget(name string, build builder) (*overloadTarget, error) {
	t := &overloadTarget{target: &target{name: name}}
	var addresses []string
	for range overloadEngines {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.close()
			return nil, err
		}
		e := &http.Server{Handler: slotEngine{make(chan struct{}, overloadSlots)}}
		go e.Serve(l)
		t.engines, addresses = append(t.engines, e), append(addresses, l.Addr().String())
	}
	free, err := freeAddresses(2)
	if err == nil {
		t.address = free[0]
		if name == "berth" {
			t.admin = free[1]
		}
		t.command, err = build(free[0], free[1], addresses)
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *overloadTarget) close() {
	for _, e := range t.engines {
		e.Close()
	}
}

// overloadBuilders return the command lines of the proxies with their defaults, apart from the
// number of slots where a proxy has such a setting.
func overloadBuilders(dir, berth string) (names []string, build map[string]builder) {
	write := func(name, text string) (string, error) {
		file := filepath.Join(dir, name)
		return file, os.WriteFile(file, []byte(text), 0o644)
	}
	names = []string{"berth"}
	build = map[string]builder{
		"berth": func(address, admin string, engines []string) ([]string, error) {
			text := fmt.Sprintf("http: {address: %q}\nadmin: {address: %q}\nllm_configs:\n- model_loading_config: {model_id: bench}\n"+
				"  deployment_config: {max_ongoing_requests: %d, request_router_config: {request_router_class: PrefixCacheAffinityRouter}}\n  replicas:\n", address, admin, overloadSlots)
			for _, e := range engines {
				text += "  - {url: \"http://" + e + "\"}\n"
			}
			file, err := write("overload-berth.yaml", text)
			return []string{berth, "serve", "--config", file}, err
		},
	}
	if path, err := exec.LookPath("haproxy"); err == nil {
		names = append(names, "haproxy")
		build["haproxy"] = func(address, _ string, engines []string) ([]string, error) {
			text := "global\n    maxconn 8000\n    no log\ndefaults\n    mode http\n    option http-no-delay\n    option abortonclose\n    timeout connect 5s\n" +
				"    timeout client 10m\n    timeout server 10m\nfrontend in\n    bind " + address + "\n    default_backend engines\nbackend engines\n    balance leastconn\n"
			for i, e := range engines {
				text += fmt.Sprintf("    server e%d %s maxconn %d\n", i, e, overloadSlots)
			}
			file, err := write("overload-haproxy.conf", text)
			return []string{path, "-db", "-f", file}, err
		}
	}
	for _, r := range routers {
		python, err := r.ensureInstalled()
		if err != nil {
			fmt.Fprintf(os.Stderr, "bench: skipping %s: installation failed: %v\n", r.name, err)
			continue
		}
		names = append(names, r.name)
		build[r.name] = func(address, metrics string, engines []string) ([]string, error) {
			var urls []string
			for _, e := range engines {
				urls = append(urls, "http://"+e)
			}
			return r.arguments(python, address, metrics, "cache_aware", urls...), nil
		}
	}
	return names, build
}

// overloadFigures are what clients saw of one load.
type overloadFigures struct {
	mu        sync.Mutex
	sent      int
	completed int
	refused   int // with 429 or 503
	failed    int // otherwise
	left      int
	first     []time.Duration // from the request to the first event, of those that completed
	refusal   []time.Duration // from the request to the refusal
}

// goodput returns the completed requests as a part of the capacity.
func (f *overloadFigures) goodput(lasts time.Duration) float64 {
	return float64(f.completed) / overloadCapacity / lasts.Seconds()
}

// offer sends requests at a multiple of the capacity, as a Poisson process, and returns the figures
// of those sent after the warm-up.
func (t *overloadTarget) offer(multiple float64, lasts time.Duration) *overloadFigures {
	f, random := new(overloadFigures), rand.New(rand.NewPCG(1, uint64(multiple*10)))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000, DisableCompression: true}}
	defer client.CloseIdleConnections()
	var running sync.WaitGroup
	began := time.Now()
	for due := time.Duration(0); due < overloadWarmUp+lasts; {
		time.Sleep(time.Until(began.Add(due)))
		counts, prompt := due >= overloadWarmUp, random.IntN(64)
		running.Go(func() {
			if of := t.request(client, prompt); counts {
				f.add(of)
			}
		})
		due += time.Duration(random.ExpFloat64() / (multiple * overloadCapacity) * float64(time.Second))
	}
	running.Wait()
	return f
}

// overloadOutcome is what became of one request.
type overloadOutcome struct {
	status   int
	complete bool
	left     bool
	first    time.Duration // until the first event or the refusal
}

func (f *overloadFigures) add(o overloadOutcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent++
	switch {
	case o.complete:
		f.completed++
		f.first = append(f.first, o.first)
	case o.left:
		f.left++
	case o.status == http.StatusTooManyRequests || o.status == http.StatusServiceUnavailable:
		f.refused++
		f.refusal = append(f.refusal, o.first)
	default:
		f.failed++
	}
}

// request sends one request and reads the response, for as long as the client's patience lasts.
func (t *overloadTarget) request(client *http.Client, prompt int) (o overloadOutcome) {
	ctx, cancel := context.WithTimeout(context.Background(), overloadPatience)
	defer cancel()
	began := time.Now()
	body := fmt.Sprintf(`{"model":"bench","stream":true,"messages":[{"role":"user","content":%q}]}`, strings.Repeat(fmt.Sprint("conversation ", prompt, " "), 50))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+t.address+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return o
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return overloadOutcome{left: ctx.Err() != nil}
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	_, err = r.Peek(1)
	o = overloadOutcome{status: resp.StatusCode, first: time.Since(began)}
	text, failed := io.ReadAll(r)
	o.complete = err == nil && failed == nil && o.status == http.StatusOK && bytes.HasSuffix(text, []byte(streamDone))
	o.left = !o.complete && ctx.Err() != nil
	return o
}

// overloadResult holds the figures by target and load.
type overloadResult struct {
	targets []string
	lasts   time.Duration
	figures map[string][]*overloadFigures // by target, in the order of overloadMultiples
}

// measureOverload offers each load to one proxy after the other, to new processes each time.
func measureOverload(dir, berth string, lasts time.Duration) (*overloadResult, error) {
	names, build := overloadBuilders(dir, berth)
	r := &overloadResult{targets: names, lasts: lasts, figures: make(map[string][]*overloadFigures)}
	for _, multiple := range overloadMultiples {
		for _, name := range names {
			f, err := offerTo(name, build[name], multiple, lasts)
			if err != nil {
				return nil, err
			}
			r.figures[name] = append(r.figures[name], f)
			fmt.Fprintf(os.Stderr, "%g × %s: %.2f of the capacity; %d of %d complete, %d refused, %d left, %d failed\n",
				multiple, name, f.goodput(lasts), f.completed, f.sent, f.refused, f.left, f.failed)
		}
	}
	return r, nil
}

// offerTo starts a proxy with engines and offers one load to the proxy.
func offerTo(name string, build builder, multiple float64, lasts time.Duration) (*overloadFigures, error) {
	t, err := newOverloadTarget(name, build)
	if err != nil {
		return nil, err
	}
	defer t.close()
	if err := t.start(); err != nil {
		return nil, err
	}
	defer t.stop()
	return t.offer(multiple, lasts), nil
}

// quantile returns the q-quantile in milliseconds, "" without values.
func quantile(d []time.Duration, q float64) string {
	if len(d) == 0 {
		return ""
	}
	slices.Sort(d)
	return fmt.Sprintf("%.0f", milliseconds(d[int(q*float64(len(d)-1))]))
}
