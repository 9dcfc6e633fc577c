package main

import (
	"bufio"
	"bytes"
	"encoding/json"
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

// patience is what one answer may take.
const patience = 60 * time.Second

// client sends one ask again and again, and compares each answer.
type client struct {
	address string
	request []byte
	want    []byte
	stream  bool

	measuring atomic.Bool
	requests  atomic.Int64 // answered while measuring
	events    atomic.Int64 // that came while measuring

	mu     sync.Mutex
	first  []time.Duration // to the first byte of a body
	errors map[string]int
}

func newClient(address string, a ask, prompt int) *client {
	a.Model = "bench"
	// The prompt repeats what the engine has to do: a router may drop or rename fields that it does not know.
	todo := fmt.Sprintf(`{"max_tokens":%d,"gap_ms":%d,"first_ms":%d} `, a.MaxTokens, a.GapMS, a.FirstMS)
	a.Messages = []message{{"user", (todo + strings.Repeat("all work and no play ", prompt/21+1))[:max(prompt, len(todo))]}}
	body, _ := json.Marshal(a)
	head := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nUser-Agent: bench\r\nAccept: */*\r\n"+
		"Authorization: Bearer none\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body))
	return &client{address: address, request: append([]byte(head), body...), want: []byte(a.answer()), stream: a.Stream, errors: make(map[string]int)}
}

// conn is one keep-alive connection of a client.
type conn struct {
	net.Conn
	r   *bufio.Reader
	buf []byte
}

func (c *client) dial() (*conn, error) {
	nc, err := net.Dial("tcp", c.address)
	if err != nil {
		return nil, err
	}
	return &conn{nc, bufio.NewReaderSize(nc, 8<<10), make([]byte, 8<<10)}, nil
}

// exchange asks once, having begun at a time, and reads until so many bytes of the answer came, all if that is negative.
func (c *client) exchange(conn *conn, began time.Time, most int) error {
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(c.request); err != nil {
		return err
	}
	resp, err := http.ReadResponse(conn.r, nil) // whose body is never closed: that would read it to its end
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	for at, seen := 0, 0; ; {
		n, err := resp.Body.Read(conn.buf)
		if at+n > len(c.want) || !bytes.Equal(conn.buf[:n], c.want[at:at+n]) {
			return fmt.Errorf("altered")
		}
		if at == 0 && n > 0 {
			c.begun(time.Since(began))
		}
		at += n
		now := at / len(event)
		if c.stream && c.measuring.Load() {
			c.events.Add(int64(now - seen))
		}
		seen = now
		switch {
		case most >= 0 && at >= most:
			return nil
		case err == io.EOF && at == len(c.want):
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

func (c *client) begun(after time.Duration) {
	if c.measuring.Load() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.first = append(c.first, after)
	}
}

func (c *client) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := err.Error()
	c.errors[text[strings.LastIndex(text, ": ")+1:]]++
}

// closed keeps so many connections busy until stop is closed. They begin spread over a time, so as not to go in step.
func (c *client) closed(connections int, spread time.Duration, stop <-chan struct{}) {
	var all sync.WaitGroup
	for i := range connections {
		all.Go(func() {
			select {
			case <-time.After(spread * time.Duration(i) / time.Duration(connections)):
			case <-stop:
				return
			}
			c.keep(stop)
		})
	}
	all.Wait()
}

// keep asks on one connection after the other, each for as long as it is good.
func (c *client) keep(stop <-chan struct{}) {
	for {
		conn, err := c.dial()
		for err == nil {
			select {
			case <-stop:
				conn.Close()
				return
			default:
				err = c.exchange(conn, time.Now(), -1)
			}
		}
		c.failed(err)
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

// open asks at a rate, whatever becomes of the asks before; at most so many at once.
func (c *client) open(rate float64, connections int, stop <-chan struct{}) {
	idle := make(chan *conn, connections)
	for range connections {
		idle <- nil
	}
	var all sync.WaitGroup
	began := time.Now()
	for i := 0; ; i++ {
		due := began.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		select {
		case <-stop:
			all.Wait()
			for range connections {
				if conn := <-idle; conn != nil {
					conn.Close()
				}
			}
			return
		case <-time.After(time.Until(due)):
		}
		all.Go(func() {
			conn, err := <-idle, error(nil)
			if conn == nil {
				conn, err = c.dial()
			}
			if err == nil {
				err = c.exchange(conn, due, -1)
			}
			if err != nil {
				c.failed(err)
				if conn != nil {
					conn.Close()
				}
				conn = nil
			}
			idle <- conn
		})
	}
}

// quantile of the times to the first byte.
func (c *client) quantile(q float64) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.first) == 0 {
		return 0
	}
	slices.Sort(c.first)
	return c.first[int(q*float64(len(c.first)-1))]
}
