package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// requestTimeout bounds one request, from its first byte to the end of the response.
const requestTimeout = 60 * time.Second

// client sends the same request repeatedly and compares every response with the expected bytes.
type client struct {
	address string
	request []byte
	want    []byte
	stream  bool

	measuring atomic.Bool
	requests  atomic.Int64 // completed while measuring
	events    atomic.Int64 // received while measuring

	mu        sync.Mutex
	firstByte []time.Duration // latencies of the first body byte, while measuring
	errors    map[string]int
}

func newClient(address string, req chatRequest, prompt int) *client {
	req.Model = "bench"
	// The parameters are repeated in the prompt, because a router may drop or rename unknown
	// fields.
	todo := fmt.Sprintf(`{"max_tokens":%d,"gap_ms":%d,"first_ms":%d} `, req.MaxTokens, req.GapMS, req.FirstMS)
	req.Messages = []message{{"user", (todo + strings.Repeat("all work and no play ", prompt/21+1))[:max(prompt, len(todo))]}}
	body, _ := json.Marshal(req)
	header := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nUser-Agent: bench\r\nAccept: */*\r\n"+
		"Authorization: Bearer none\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body))
	return &client{address: address, request: append([]byte(header), body...), want: []byte(req.responseBody()), stream: req.Stream, errors: make(map[string]int)}
}

// clientConn is a keep-alive connection.
type clientConn struct {
	net.Conn
	r   *bufio.Reader
	buf []byte
}

func (c *client) dial() (*clientConn, error) {
	nc, err := net.Dial("tcp", c.address)
	if err != nil {
		return nil, err
	}
	return &clientConn{nc, bufio.NewReaderSize(nc, 8<<10), make([]byte, 8<<10)}, nil
}

// sendRequest sends one request and reads limit bytes of the response, or all of it if limit is
// negative. Latency is measured from began.
func (c *client) sendRequest(conn *clientConn, began time.Time, limit int) error {
	conn.SetDeadline(time.Now().Add(requestTimeout))
	if _, err := conn.Write(c.request); err != nil {
		return err
	}
	resp, err := http.ReadResponse(conn.r, nil) // the body is not closed: Close would read the rest
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	for received, counted := 0, 0; ; {
		n, err := resp.Body.Read(conn.buf)
		if received+n > len(c.want) || !bytes.Equal(conn.buf[:n], c.want[received:received+n]) {
			return errors.New("the response differs from the expected bytes")
		}
		if received == 0 && n > 0 {
			c.recordFirstByte(time.Since(began))
		}
		received += n
		complete := received / len(streamEvent)
		if c.stream && c.measuring.Load() {
			c.events.Add(int64(complete - counted))
		}
		counted = complete
		switch {
		case limit >= 0 && received >= limit:
			return nil
		case err == io.EOF && received == len(c.want):
			if c.measuring.Load() {
				c.requests.Add(1)
			}
			return nil
		case err == io.EOF:
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		}
	}
}

func (c *client) recordFirstByte(elapsed time.Duration) {
	if c.measuring.Load() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.firstByte = append(c.firstByte, elapsed)
	}
}

func (c *client) recordError(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := err.Error()
	c.errors[text[strings.LastIndex(text, ": ")+1:]]++
}

// runClosedLoop keeps the given number of connections busy until stop is closed. Their starts are
// spread over a period, so that they do not run in lockstep.
func (c *client) runClosedLoop(connections int, spread time.Duration, stop <-chan struct{}) {
	var loops sync.WaitGroup
	for i := range connections {
		loops.Go(func() {
			select {
			case <-time.After(spread * time.Duration(i) / time.Duration(connections)):
			case <-stop:
				return
			}
			c.runConnection(stop)
		})
	}
	loops.Wait()
}

// runConnection sends requests back to back until stop is closed. It reconnects after an error.
func (c *client) runConnection(stop <-chan struct{}) {
	for {
		conn, err := c.dial()
		for err == nil {
			select {
			case <-stop:
				conn.Close()
				return
			default:
				err = c.sendRequest(conn, time.Now(), -1)
			}
		}
		c.recordError(err)
		if conn != nil {
			conn.Close()
		}
		select {
		case <-stop:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// runOpenLoop starts requests at a fixed rate, independent of earlier responses, on at most the
// given number of connections. It returns after stop is closed and the last response has ended.
func (c *client) runOpenLoop(rate float64, connections int, stop <-chan struct{}) {
	idle := make(chan *clientConn, connections)
	for range connections {
		idle <- nil
	}
	var running sync.WaitGroup
	began := time.Now()
	for i := 0; ; i++ {
		due := began.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		select {
		case <-stop:
			running.Wait()
			for range connections {
				if conn := <-idle; conn != nil {
					conn.Close()
				}
			}
			return
		case <-time.After(time.Until(due)):
		}
		running.Go(func() {
			conn, err := <-idle, error(nil)
			if conn == nil {
				conn, err = c.dial()
			}
			if err == nil {
				err = c.sendRequest(conn, due, -1)
			}
			if err != nil {
				c.recordError(err)
				if conn != nil {
					conn.Close()
				}
				conn = nil
			}
			idle <- conn
		})
	}
}

// firstByteQuantile returns the q-quantile of the first-byte latencies, 0 if there are none.
func (c *client) firstByteQuantile(q float64) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.firstByte) == 0 {
		return 0
	}
	slices.Sort(c.firstByte)
	return c.firstByte[int(q*float64(len(c.firstByte)-1))]
}
