package main

import (
	"fmt"
	"slices"
	"time"
)

// work is a kind of load.
type work struct {
	name, title string
	ask         ask
	prompt      int     // bytes
	connections int     // kept busy, or at most where there is a rate
	rate        float64 // asks per second whatever becomes of those before; 0: as fast as they are answered
	warm        time.Duration
	unit        string // what CPU time is divided by: request or event
}

var works = []work{
	{name: "requests", title: "small requests, 64 connections", unit: "request",
		ask: ask{MaxTokens: 16}, prompt: 200, connections: 64, warm: time.Second},
	{name: "events", title: "200 streams, an event every 20 ms", unit: "event",
		ask: ask{Stream: true, MaxTokens: 100, GapMS: 20}, prompt: 200, connections: 200, warm: 2500 * time.Millisecond},
	{name: "streams", title: "1,000 streams, an event every 20 ms", unit: "event",
		ask: ask{Stream: true, MaxTokens: 100, GapMS: 20}, prompt: 200, connections: 1000, warm: 3 * time.Second},
	{name: "bulk", title: "32 streams of 128 events, as fast as they go", unit: "event",
		ask: ask{Stream: true, MaxTokens: 128}, prompt: 200, connections: 32, warm: time.Second},
	{name: "prompts", title: "prompts of 256 KiB, 16 connections", unit: "request",
		ask: ask{MaxTokens: 16}, prompt: 256 << 10, connections: 16, warm: time.Second},
	{name: "arrivals", title: "500 streams of 16 events begun per second", unit: "request",
		ask: ask{Stream: true, MaxTokens: 16}, prompt: 2000, connections: 512, rate: 500, warm: time.Second},
}

func find(name string) (work, error) {
	i := slices.IndexFunc(works, func(w work) bool { return w.name == name })
	if i < 0 {
		return work{}, fmt.Errorf("there is no work %q", name)
	}
	return works[i], nil
}

// figures are what one round, or the median of all, came to.
type figures struct {
	CPU      float64 // microseconds per unit
	Rate     float64 // units per second
	First50  float64 // milliseconds to the first byte of an answer
	First99  float64
	KiB      float64 // of memory per stream, at the end of the round
	Failures int     // answers that broke off or were altered; the sum over rounds
}

// round does the work on one target for a while. empty is what the target held before there was any work.
func (w work) round(t *target, empty usage, took time.Duration) (f figures, err error) {
	c, stop, ended := newClient(t.address, w.ask, w.prompt), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		if w.rate > 0 {
			c.open(w.rate, w.connections, stop)
		} else {
			c.closed(w.connections, w.warm*4/5, stop)
		}
	}()
	defer func() { <-ended }()
	defer close(stop)
	time.Sleep(w.warm)
	before, err := t.usage()
	if err != nil {
		return f, err
	}
	began := time.Now()
	c.measuring.Store(true)
	time.Sleep(took)
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
	for what, n := range c.errors {
		fmt.Printf("  %s: %d answers failed: %s\n", t.name, n, what)
		f.Failures += n
	}
	c.mu.Unlock()
	f.CPU = float64((after.cpu - before.cpu).Microseconds()) / float64(max(units, 1))
	f.Rate = float64(units) / time.Since(began).Seconds()
	f.First50, f.First99 = milliseconds(c.quantile(0.5)), milliseconds(c.quantile(0.99))
	f.KiB = float64(after.resident-empty.resident) / 1024 / float64(w.connections)
	return f, nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// result is a work done on all targets.
type result struct {
	work
	rounds  int
	targets []string
	figures map[string]figures
}

// compare does the work in interleaved rounds. Each target is a fresh process, so that memory begins clean.
func (w work) compare(all []*target, rounds int, took time.Duration) (*result, error) {
	r := &result{work: w, rounds: rounds, figures: make(map[string]figures)}
	rows, empty := make(map[string][]figures), make(map[string]usage)
	for _, t := range all {
		if err := t.start(); err != nil {
			return nil, err
		}
		defer t.stop()
		var err error
		if empty[t.name], err = t.usage(); err != nil {
			return nil, err
		}
		r.targets = append(r.targets, t.name)
	}
	for range rounds {
		for _, t := range all {
			f, err := w.round(t, empty[t.name], took)
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

func median(rounds []figures) (m figures) {
	middle := func(of func(figures) float64) float64 {
		var all []float64
		for _, f := range rounds {
			all = append(all, of(f))
		}
		slices.Sort(all)
		return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
	}
	for _, f := range rounds {
		m.Failures += f.Failures
	}
	m.CPU = middle(func(f figures) float64 { return f.CPU })
	m.Rate = middle(func(f figures) float64 { return f.Rate })
	m.First50 = middle(func(f figures) float64 { return f.First50 })
	m.First99 = middle(func(f figures) float64 { return f.First99 })
	m.KiB = middle(func(f figures) float64 { return f.KiB })
	return m
}
