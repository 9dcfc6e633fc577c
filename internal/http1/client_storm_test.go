package http1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// Clients come, read all, leave early, or are cut off, all at once. What is read whole is right, and nothing stays behind.
func TestAStormLeavesNothingBehind(t *testing.T) {
	events := strings.Repeat("data: {\"n\":1}\n\n", 20)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		switch req.URL.Path {
		case "/stream":
			for event := range strings.Lines(events) {
				io.WriteString(w, event)
				http.NewResponseController(w).Flush()
			}
		case "/break":
			panic(http.ErrAbortHandler)
		default:
			w.Write(body)
		}
	}))
	defer server.Close()
	c := newTestClient(t, server.URL)
	var all sync.WaitGroup
	for worker := range 16 {
		all.Go(func() {
			for i := range 60 {
				stormRequest(t, c, (worker+i)%5, events)
			}
		})
	}
	all.Wait()
	c.Close()
	if c.pool.popConn() != nil {
		t.Error("a connection is still in the pool")
	}
}

func stormRequest(t *testing.T, c *Client, what int, events string) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	gone := errors.New("gone")
	switch what {
	case 0:
		want := strings.Repeat("x", 100_000)
		if _, body, err := roundTripBody(c, newRequest(ctx, http.MethodPost, "/echo", want)); err != nil && failureOf(err) != failureStale || err == nil && body != want {
			t.Errorf("an echo of %d bytes: %d, %v", len(want), len(body), err)
		}
	case 1:
		if _, body, err := roundTripBody(c, newPost(ctx, "/stream")); err != nil && failureOf(err) != failureStale || err == nil && body != events {
			t.Errorf("a stream: %q, %v", body, err)
		}
	case 2:
		if _, _, err := roundTripBody(c, newPost(ctx, "/break")); failureOf(err) != failureBroken && failureOf(err) != failureStale {
			t.Errorf("a broken answer: %v", err)
		}
	case 3:
		resp, err := c.Do(newPost(ctx, "/stream"))
		if err == nil {
			bufio.NewReader(resp.Body).ReadString('\n')
			resp.Body.Close()
		}
	case 4:
		time.AfterFunc(time.Duration(len(events))*time.Microsecond, func() { cancel(gone) })
		if _, _, err := roundTripBody(c, newPost(ctx, "/stream")); err != nil && err != gone && failureOf(err) != failureStale {
			t.Errorf("a cancelled stream: %v", err)
		}
	}
}
