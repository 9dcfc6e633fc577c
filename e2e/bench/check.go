package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// leave has 200 clients leave at once, within their streams and before these begin, and looks how soon the engine knows.
func leave(t *target, engine string) error {
	if err := t.start(); err != nil {
		return err
	}
	defer t.stop()
	const clients = 200
	for _, when := range []struct {
		name string
		ask  ask
		read int
	}{
		{"within the stream", ask{Stream: true, MaxTokens: 3000, GapMS: 20}, 20 * len(event)},
		{"before the first event", ask{Stream: true, MaxTokens: 10, FirstMS: 30_000}, 0},
	} {
		before, err := look(engine)
		if err != nil {
			return err
		}
		c := newClient(t.address, when.ask, 200)
		conns := make([]*conn, clients)
		var begun sync.WaitGroup
		for i := range conns {
			if conns[i], err = c.dial(); err != nil {
				return err
			}
			if when.read > 0 {
				begun.Go(func() {
					if err := c.exchange(conns[i], time.Now(), when.read); err != nil {
						c.failed(err)
					}
				})
			} else if _, err := conns[i].Write(c.request); err != nil {
				return err
			}
		}
		begun.Wait()
		if err := until(engine, func(now counts) bool { return now.Open-before.Open >= clients }); err != nil {
			return fmt.Errorf("not all clients are at the engine: %w", err)
		}
		left := time.Now()
		for _, conn := range conns {
			conn.Close()
		}
		if err := until(engine, func(now counts) bool { return now.Left-before.Left >= clients }); err != nil {
			return fmt.Errorf("clients that left %s: %w", when.name, err)
		}
		took := time.Since(left)
		fmt.Printf("%d of %d clients that left %s were gone at the engine after %v\n", clients, clients, when.name, took.Round(time.Millisecond))
		if took > 100*time.Millisecond || len(c.errors) > 0 {
			return fmt.Errorf("it took %v; errors: %v", took, c.errors)
		}
	}
	return nil
}

// look asks the engine for its counts.
func look(engine string) (now counts, err error) {
	resp, err := http.Get("http://" + engine + "/counts")
	if err != nil {
		return now, err
	}
	defer resp.Body.Close()
	return now, json.NewDecoder(resp.Body).Decode(&now)
}

// until waits for a state of the engine.
func until(engine string, good func(counts) bool) error {
	var now counts
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		var err error
		if now, err = look(engine); err != nil {
			return err
		}
		if good(now) {
			return nil
		}
	}
	return fmt.Errorf("after 10 s the engine counts %+v", now)
}

// crowd has 5,000 connections stream at once.
func crowd(t *target) error {
	if err := t.start(); err != nil {
		return err
	}
	defer t.stop()
	const clients, most = 5000, 400 << 20
	c := newClient(t.address, ask{Stream: true, MaxTokens: 20, GapMS: 1000}, 200)
	stop, ended := make(chan struct{}), make(chan struct{})
	c.measuring.Store(true)
	go func() { defer close(ended); c.closed(clients, 8*time.Second, stop) }()
	peak := usage{}
	for began := time.Now(); time.Since(began) < 35*time.Second; time.Sleep(200 * time.Millisecond) {
		now, err := t.usage()
		if err != nil {
			return err
		}
		peak.resident = max(peak.resident, now.resident)
	}
	close(stop)
	<-ended
	fmt.Printf("%d connections: %d streams came whole, errors %v, at most %d MiB\n", clients, c.requests.Load(), c.errors, peak.resident>>20)
	if len(c.errors) > 0 || c.requests.Load() < clients || peak.resident > most {
		return errors.New("that is not what must hold: no error, and less than 400 MiB")
	}
	return nil
}

// soak keeps mixed work up and looks whether memory and goroutines stay what they were after a first part of the time.
func soak(t *target, took time.Duration) error {
	if err := t.start(); err != nil {
		return err
	}
	defer t.stop()
	stop := make(chan struct{})
	var busy sync.WaitGroup
	clients := []*client{
		newClient(t.address, ask{Stream: true, MaxTokens: 50, GapMS: 20}, 2000),
		newClient(t.address, ask{MaxTokens: 16}, 64<<10),
		newClient(t.address, ask{Stream: true, MaxTokens: 500, GapMS: 10}, 200),
	}
	busy.Go(func() { clients[0].closed(100, 2*time.Second, stop) })
	busy.Go(func() { clients[1].open(20, 32, stop) })
	busy.Go(func() { leaving(clients[2], stop) })
	var early, late []sample
	for began := time.Now(); time.Since(began) < took; time.Sleep(max(took/200, 500*time.Millisecond)) {
		now, err := t.sample()
		if err != nil {
			return err
		}
		switch at := time.Since(began); {
		case at > took/5 && at <= 2*took/5:
			early = append(early, now)
		case at > 4*took/5:
			late = append(late, now)
		}
	}
	close(stop)
	busy.Wait()
	first, last := highest(early), highest(late)
	fmt.Printf("%v of mixed work: from %d to %d MiB, from %d to %d goroutines\n", took, first.resident>>20, last.resident>>20, first.goroutines, last.goroutines)
	for _, c := range clients {
		if len(c.errors) > 0 {
			return fmt.Errorf("answers failed: %v", c.errors)
		}
	}
	if last.resident > first.resident*5/4+8<<20 || last.goroutines > first.goroutines*5/4+50 {
		return errors.New("it grows")
	}
	return nil
}

// leaving has clients leave in the midst of their streams, 20 a second.
func leaving(c *client, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(50 * time.Millisecond):
		}
		conn, err := c.dial()
		if err == nil {
			err = c.exchange(conn, time.Now(), 3*len(event))
			conn.Close()
		}
		if err != nil {
			c.failed(err)
		}
	}
}

// sample is how large berth is at one moment.
type sample struct {
	resident   int64
	goroutines int
}

func (t *target) sample() (s sample, err error) {
	u, err := t.usage()
	if err != nil {
		return s, err
	}
	resp, err := http.Get("http://" + t.admin + "/metrics")
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return s, err
	}
	_, rest, found := strings.Cut(string(text), "\ngo_goroutines ")
	line, _, _ := strings.Cut(rest, "\n")
	if s.goroutines, err = strconv.Atoi(line); !found || err != nil {
		return s, fmt.Errorf("berth does not tell its goroutines: %w", err)
	}
	s.resident = u.resident
	return s, nil
}

func highest(samples []sample) (most sample) {
	for _, s := range samples {
		most.resident, most.goroutines = max(most.resident, s.resident), max(most.goroutines, s.goroutines)
	}
	return most
}
