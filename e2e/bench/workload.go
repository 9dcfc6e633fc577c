package main

import (
	"fmt"
	"slices"
	"time"
)

// workload is a kind of traffic.
type workload struct {
	name, title string
	request     chatRequest
	prompt      int     // bytes
	connections int     // number of busy connections; an upper bound if rate is set
	rate        float64 // requests per second of an open loop; 0 is a closed loop
	warmUp      time.Duration
	unit        string // unit of CPU time and rate: request or event
}

var workloads = []workload{
	{name: "requests", title: "small requests, 64 connections", unit: "request",
		request: chatRequest{MaxTokens: 16}, prompt: 200, connections: 64, warmUp: time.Second},
	{name: "events", title: "200 streams, an event every 20 ms", unit: "event",
		request: chatRequest{Stream: true, MaxTokens: 100, GapMS: 20}, prompt: 200, connections: 200, warmUp: 2500 * time.Millisecond},
	{name: "streams", title: "1,000 streams, an event every 20 ms", unit: "event",
		request: chatRequest{Stream: true, MaxTokens: 100, GapMS: 20}, prompt: 200, connections: 1000, warmUp: 3 * time.Second},
	{name: "bulk", title: "32 streams of 128 events, as fast as they go", unit: "event",
		request: chatRequest{Stream: true, MaxTokens: 128}, prompt: 200, connections: 32, warmUp: time.Second},
	{name: "prompts", title: "prompts of 256 KiB, 16 connections", unit: "request",
		request: chatRequest{MaxTokens: 16}, prompt: 256 << 10, connections: 16, warmUp: time.Second},
	{name: "arrivals", title: "500 streams of 16 events begun per second", unit: "request",
		request: chatRequest{Stream: true, MaxTokens: 16}, prompt: 2000, connections: 512, rate: 500, warmUp: time.Second},
}

// findWorkload returns the workload with the given name.
func findWorkload(name string) (workload, error) {
	i := slices.IndexFunc(workloads, func(w workload) bool { return w.name == name })
	if i < 0 {
		return workload{}, fmt.Errorf("unknown workload %q", name)
	}
	return workloads[i], nil
}

// figures are the results of one round, or the medians over all rounds.
type figures struct {
	CPU      float64 // microseconds per unit
	Rate     float64 // units per second
	First50  float64 // milliseconds to the first byte of the response body
	First99  float64
	KiB      float64 // memory per connection at the end of the round
	Failures int     // truncated or altered responses; the sum over rounds
}

// runRound runs the workload on a target and returns the figures of the given duration after the
// warm-up. idle is the usage of the target before its first request.
func (w workload) runRound(t *target, idle usage, duration time.Duration) (f figures, err error) {
	c, stop, done := newClient(t.address, w.request, w.prompt), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		if w.rate > 0 {
			c.runOpenLoop(w.rate, w.connections, stop)
		} else {
			c.runClosedLoop(w.connections, w.warmUp*4/5, stop)
		}
	}()
	defer func() { <-done }()
	defer close(stop)
	time.Sleep(w.warmUp)
	before, err := t.usage()
	if err != nil {
		return f, err
	}
	began := time.Now()
	c.measuring.Store(true)
	time.Sleep(duration)
	after, err := t.usage()
	c.measuring.Store(false)
	if err != nil {
		return f, err
	}
	units := c.requests.Load()
	if w.unit == "event" {
		units = c.events.Load()
	}
	c.mu.Lock()
	for text, n := range c.errors {
		fmt.Printf("  %s: %d failed responses: %s\n", t.name, n, text)
		f.Failures += n
	}
	c.mu.Unlock()
	f.CPU = float64((after.cpu - before.cpu).Microseconds()) / float64(max(units, 1))
	f.Rate = float64(units) / time.Since(began).Seconds()
	f.First50, f.First99 = milliseconds(c.firstByteQuantile(0.5)), milliseconds(c.firstByteQuantile(0.99))
	f.KiB = float64(after.resident-idle.resident) / 1024 / float64(w.connections)
	return f, nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// result holds the figures of a workload on all targets.
type result struct {
	workload
	rounds  int
	targets []string
	figures map[string]figures
}

// compareTargets runs the workload on all targets in interleaved rounds. It starts a new process
// for each target, so that memory of earlier workloads does not count.
func (w workload) compareTargets(targets []*target, rounds int, duration time.Duration) (*result, error) {
	r := &result{workload: w, rounds: rounds, figures: make(map[string]figures)}
	rows, idle := make(map[string][]figures), make(map[string]usage)
	for _, t := range targets {
		if err := t.start(); err != nil {
			return nil, err
		}
		defer t.stop()
		var err error
		if idle[t.name], err = t.usage(); err != nil {
			return nil, err
		}
		r.targets = append(r.targets, t.name)
	}
	for range rounds {
		for _, t := range targets {
			f, err := w.runRound(t, idle[t.name], duration)
			if err != nil {
				return nil, err
			}
			rows[t.name] = append(rows[t.name], f)
		}
	}
	for name, rounds := range rows {
		r.figures[name] = median(rounds)
	}
	return r, nil
}

// median returns the median of each field, and the sum of failures.
func median(rounds []figures) (m figures) {
	medianOf := func(field func(figures) float64) float64 {
		var all []float64
		for _, f := range rounds {
			all = append(all, field(f))
		}
		slices.Sort(all)
		return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
	}
	for _, f := range rounds {
		m.Failures += f.Failures
	}
	m.CPU = medianOf(func(f figures) float64 { return f.CPU })
	m.Rate = medianOf(func(f figures) float64 { return f.Rate })
	m.First50 = medianOf(func(f figures) float64 { return f.First50 })
	m.First99 = medianOf(func(f figures) float64 { return f.First99 })
	m.KiB = medianOf(func(f figures) float64 { return f.KiB })
	return m
}
