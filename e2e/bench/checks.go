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

// checkDisconnects disconnects 200 clients at once, mid-stream and before the first event, and
// checks that all disconnects reach the engine within 100 ms.
func checkDisconnects(t *target, engine string) error {
	if err := t.start(); err != nil {
		return err
	}
	defer t.stop()
	const clients = 200
	for _, tc := range []struct {
		name string
		ask  chatRequest
		read int
	}{
		{"mid-stream", chatRequest{Stream: true, MaxTokens: 3000, GapMS: 20}, 20 * len(streamEvent)},
		{"before the first event", chatRequest{Stream: true, MaxTokens: 10, FirstMS: 30_000}, 0},
	} {
		before, err := readCounts(engine)
		if err != nil {
			return err
		}
		c := newClient(t.address, tc.ask, 200)
		conns := make([]*clientConn, clients)
		var streaming sync.WaitGroup
		for i := range conns {
			if conns[i], err = c.dial(); err != nil {
				return err
			}
			if tc.read > 0 {
				streaming.Go(func() {
					if err := c.sendRequest(conns[i], time.Now(), tc.read); err != nil {
						c.recordError(err)
					}
				})
			} else if _, err := conns[i].Write(c.request); err != nil {
				return err
			}
		}
		streaming.Wait()
		if err := waitForCounts(engine, func(now counts) bool { return now.Active-before.Active >= clients }); err != nil {
			return fmt.Errorf("not all requests reached the engine: %w", err)
		}
		disconnectedAt := time.Now()
		for _, conn := range conns {
			conn.Close()
		}
		if err := waitForCounts(engine, func(now counts) bool { return now.Disconnected-before.Disconnected >= clients }); err != nil {
			return fmt.Errorf("disconnects %s: %w", tc.name, err)
		}
		elapsed := time.Since(disconnectedAt)
		fmt.Printf("%d of %d disconnects %s reached the engine within %v\n", clients, clients, tc.name, elapsed.Round(time.Millisecond))
		if elapsed > 100*time.Millisecond || len(c.errors) > 0 {
			return fmt.Errorf("disconnects took %v, want at most 100 ms; errors: %v", elapsed, c.errors)
		}
	}
	return nil
}

// readCounts returns the engine's counts.
func readCounts(engine string) (now counts, err error) {
	resp, err := http.Get("http://" + engine + "/counts")
	if err != nil {
		return now, err
	}
	defer resp.Body.Close()
	return now, json.NewDecoder(resp.Body).Decode(&now)
}

// waitForCounts polls the engine's counts until ok returns true, for at most 10 s.
func waitForCounts(engine string, ok func(counts) bool) error {
	var now counts
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		var err error
		if now, err = readCounts(engine); err != nil {
			return err
		}
		if ok(now) {
			return nil
		}
	}
	return fmt.Errorf("the engine's counts after 10 s: %+v", now)
}

// checkConnections streams on 5,000 connections at once and checks that no stream fails and that
// the target's memory stays below 400 MiB.
func checkConnections(t *target) error {
	if err := t.start(); err != nil {
		return err
	}
	defer t.stop()
	const clients, maxResident = 5000, 400 << 20
	c := newClient(t.address, chatRequest{Stream: true, MaxTokens: 20, GapMS: 1000}, 200)
	stop, done := make(chan struct{}), make(chan struct{})
	c.measuring.Store(true)
	go func() { defer close(done); c.runClosedLoop(clients, 8*time.Second, stop) }()
	peak := usage{}
	for began := time.Now(); time.Since(began) < 35*time.Second; time.Sleep(200 * time.Millisecond) {
		now, err := t.usage()
		if err != nil {
			return err
		}
		peak.resident = max(peak.resident, now.resident)
	}
	close(stop)
	<-done
	fmt.Printf("%d connections: %d complete streams, errors %v, peak memory %d MiB\n", clients, c.requests.Load(), c.errors, peak.resident>>20)
	if len(c.errors) > 0 || c.requests.Load() < clients || peak.resident > maxResident {
		return errors.New("want no error, a complete stream per connection and less than 400 MiB")
	}
	return nil
}

// checkSoak runs mixed traffic and checks that memory and goroutines in the last fifth of the time
// are not above those in the second fifth.
func checkSoak(t *target, duration time.Duration) error {
	if err := t.start(); err != nil {
		return err
	}
	defer t.stop()
	stop := make(chan struct{})
	var running sync.WaitGroup
	clients := []*client{
		newClient(t.address, chatRequest{Stream: true, MaxTokens: 50, GapMS: 20}, 2000),
		newClient(t.address, chatRequest{MaxTokens: 16}, 64<<10),
		newClient(t.address, chatRequest{Stream: true, MaxTokens: 500, GapMS: 10}, 200),
	}
	running.Go(func() { clients[0].runClosedLoop(100, 2*time.Second, stop) })
	running.Go(func() { clients[1].runOpenLoop(20, 32, stop) })
	running.Go(func() { disconnectRepeatedly(clients[2], stop) })
	var early, late []memorySample
	for began := time.Now(); time.Since(began) < duration; time.Sleep(max(duration/200, 500*time.Millisecond)) {
		now, err := t.sampleMemory()
		if err != nil {
			return err
		}
		switch at := time.Since(began); {
		case at > duration/5 && at <= 2*duration/5:
			early = append(early, now)
		case at > 4*duration/5:
			late = append(late, now)
		}
	}
	close(stop)
	running.Wait()
	first, last := maxSample(early), maxSample(late)
	fmt.Printf("%v of mixed traffic: from %d to %d MiB, from %d to %d goroutines\n", duration, first.resident>>20, last.resident>>20, first.goroutines, last.goroutines)
	for _, c := range clients {
		if len(c.errors) > 0 {
			return fmt.Errorf("failed responses: %v", c.errors)
		}
	}
	if last.resident > first.resident*5/4+8<<20 || last.goroutines > first.goroutines*5/4+50 {
		return errors.New("memory or goroutines grow")
	}
	return nil
}

// disconnectRepeatedly disconnects 20 clients per second mid-stream until stop is closed.
func disconnectRepeatedly(c *client, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(50 * time.Millisecond):
		}
		conn, err := c.dial()
		if err == nil {
			err = c.sendRequest(conn, time.Now(), 3*len(streamEvent))
			conn.Close()
		}
		if err != nil {
			c.recordError(err)
		}
	}
}

// memorySample is berth's memory and number of goroutines at one time.
type memorySample struct {
	resident   int64
	goroutines int
}

func (t *target) sampleMemory() (s memorySample, err error) {
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
		return s, fmt.Errorf("berth's metrics lack go_goroutines: %w", err)
	}
	s.resident = u.resident
	return s, nil
}

// maxSample returns the highest value of each field.
func maxSample(samples []memorySample) (peak memorySample) {
	for _, s := range samples {
		peak.resident, peak.goroutines = max(peak.resident, s.resident), max(peak.goroutines, s.goroutines)
	}
	return peak
}
