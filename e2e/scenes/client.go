package scenes

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/bits"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// patience is the time after which a client gives up a request.
	patience = 20 * time.Second
	sessions = 20
)

// A Client sends requests to a router. It is safe for concurrent use.
type Client struct {
	url  string
	http *http.Client
	sent atomic.Int64
}

// NewClient returns a client of the router at a base URL without a path.
func NewClient(url string) *Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 1000, DisableCompression: true}
	return &Client{url: url, http: &http.Client{Transport: transport}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// A Call is what a client sends.
type Call struct {
	Path   string // default: /v1/chat/completions
	Stream bool
	Fields string // further fields of the body, such as `"store":true`
	Poison Fault  // ServerError or Break: every engine fails in this way for this prompt
}

// A Response is what a client received.
type Response struct {
	ID      int // unique among the requests of the client
	Stream  bool
	Sent    time.Time
	Ended   time.Time
	Status  int    // 0 without a response header
	Body    string // of the response, as far as received
	Begun   bool   // an event of the stream arrived
	Failure string // why the response is not complete and good, else empty
	Engine  string // name of the engine, if the response has it
}

var engineMark = regexp.MustCompile(`\[engine ([\w-]+)\]`)

// Send sends a request and reads the response, for at most 20 s.
func (c *Client) Send(ctx context.Context, call Call) (r Response) {
	r.ID, r.Stream, r.Sent = int(c.sent.Add(1)), call.Stream, time.Now()
	defer func() {
		r.Ended = time.Now()
		if m := engineMark.FindStringSubmatch(r.Body); m != nil {
			r.Engine = m[1]
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	resp, err := c.http.Do(c.request(ctx, r.ID, call))
	if err != nil {
		r.Failure = failureText(ctx, err)
		return r
	}
	defer resp.Body.Close()
	r.Status = resp.StatusCode
	if err := r.read(resp.Body); err != nil {
		r.Failure = failureText(ctx, err)
	} else if r.Status != http.StatusOK {
		r.Failure = fmt.Sprintf("status %d", r.Status)
	} else if r.Stream && (!strings.HasSuffix(r.Body, "data: [DONE]\n\n") || strings.Contains(r.Body, `"error"`)) {
		r.Failure = "the stream ended early"
	} else if !engineMark.MatchString(r.Body) {
		r.Failure = "the response is not one of an engine"
	}
	return r
}

// request returns the request. Its prompt consists of a text of the session and one of its own. A
// poisoned prompt is the same every time; its request is marked in a field that not every router
// passes on.
func (c *Client) request(ctx context.Context, id int, call Call) *http.Request {
	session, mark := id*7%sessions, fmt.Sprintf("[request %d]", id)
	prompt, user := mark+" Tell the story of the number.", "scenes"
	if call.Poison != "" {
		session, prompt, user = 0, call.Poison.marker()+" Tell the story that ends badly.", mark
	}
	common := fmt.Sprintf("You are assistant number %d. ", session) + strings.Repeat(fmt.Sprintf("Rule %d applies. ", session), 60)
	fields := ""
	if call.Fields != "" {
		fields = "," + call.Fields
	}
	path, input := call.Path, fmt.Sprintf(`"messages":[{"role":"system","content":%q},{"role":"user","content":%q}]`, common, prompt)
	switch path {
	case "":
		path = "/v1/chat/completions"
	case "/v1/responses":
		input = fmt.Sprintf(`"input":%q`, prompt)
	}
	body := fmt.Sprintf(`{"model":%q,"stream":%t,%s,"user":%q%s}`, modelID, call.Stream, input, user, fields)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, strings.NewReader(body))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Session-ID", fmt.Sprintf("session-%d", session))
	return req
}

// read reads the response body to its end.
func (r *Response) read(body io.Reader) error {
	in, text := bufio.NewReader(body), new(strings.Builder)
	defer func() { r.Body = text.String() }()
	for {
		line, err := in.ReadString('\n')
		text.WriteString(line)
		if r.Stream && r.Status == http.StatusOK && strings.HasPrefix(line, "data: ") && !strings.Contains(line, `"error"`) {
			r.Begun = true
		}
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// failureText returns a short text of a request's error.
func failureText(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return fmt.Sprintf("no end within %v", patience)
	}
	text := err.Error()
	return strings.TrimSpace(text[strings.LastIndex(text, ": ")+1:])
}

// Load sends requests at a fixed rate until the context is done. Half of them are streams, in a
// sequence without a period, so that a router that takes turns sends both kinds to every engine.
// It returns all responses, in no order, once each request has ended: up to 20 s later.
func (c *Client) Load(ctx context.Context, rate float64) (all []Response) {
	var mu sync.Mutex
	var running sync.WaitGroup
	begin, interval := time.Now(), time.Duration(float64(time.Second)/rate)
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			running.Wait()
			return all
		case <-time.After(time.Until(begin.Add(time.Duration(i) * interval))): // a late one is made up for
			running.Go(func() {
				r := c.Send(context.WithoutCancel(ctx), Call{Stream: bits.OnesCount(uint(i))%2 == 0})
				mu.Lock()
				defer mu.Unlock()
				all = append(all, r)
			})
		}
	}
}
