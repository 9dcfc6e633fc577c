package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"berth/llmserver"
)

// controlTimeout bounds a control call, beyond the time that it is meant to wait.
const controlTimeout = 2 * time.Second

// client is the Backend of a replica that has an agent.
type client struct {
	llmserver.Backend                   // for requests
	control           llmserver.Backend // for control calls, which do not bear the engine's key
	holder            []string          // its name towards the agent, as a header has it
	secret            atomic.Pointer[string]
}

// Dial makes the backend of a replica that has an agent. It connects only
// when a request needs it.
func Dial(e llmserver.Endpoint) (llmserver.Backend, error) {
	requests, err := llmserver.DialHTTP(e)
	if err != nil {
		return nil, err
	}
	control, err := llmserver.DialHTTP(e)
	if err != nil {
		return nil, err
	}
	c := &client{Backend: requests, control: control, holder: []string{uuid.NewString()}}
	c.Describe(e)
	return c, nil
}

// Describe takes over keys and deadlines.
func (c *client) Describe(e llmserver.Endpoint) {
	c.secret.Store(&e.SlotSecret)
	c.Backend.Describe(e)
	e.APIKey = ""
	c.control.Describe(e)
}

// Close lets go of idle connections.
func (c *client) Close() {
	c.Backend.Close()
	c.control.Close()
}

// Reserve reserves at the agent, waiting in its line for as long as wait says.
func (c *client) Reserve(ctx context.Context, t llmserver.Token, wait time.Duration) (llmserver.Report, error) {
	ctx, stop := context.WithTimeoutCause(ctx, wait+controlTimeout, errAgentLate)
	defer stop()
	body := fmt.Sprintf(`{"token":%q,"lease_s":%g,"wait_ms":%d}`, t, DefaultLease.Seconds(), wait.Milliseconds())
	answer, err := c.call(ctx, http.MethodPost, "/internal/slots", body)
	report := answer.decode()
	switch {
	case err != nil:
		return report, err
	case answer.Accepted == nil:
		return report, errNoAgent
	case *answer.Accepted:
		return report, nil
	case answer.Draining:
		return report, llmserver.ErrDraining
	default:
		return report, llmserver.ErrFull
	}
}

// Cancel gives a reservation back, also one whose reply was lost.
func (c *client) Cancel(ctx context.Context, t llmserver.Token) (llmserver.Report, error) {
	path := "/internal/slots/" + t.String()
	answer, err := c.call(ctx, http.MethodDelete, path, "")
	if errors.Is(err, llmserver.ErrNoConnection) { // by now another call may have left a connection to use
		answer, err = c.call(ctx, http.MethodDelete, path, "")
	}
	return answer.decode(), err
}

// Do sends a request that consumes the token. A refusal by the agent is an
// error that llmserver.Refused knows: the engine has seen nothing then.
func (c *client) Do(req *http.Request, t llmserver.Token) (*http.Response, llmserver.Report, error) {
	req = req.WithContext(req.Context()) // the caller's header may go to another replica next
	req.Header = maps.Clone(req.Header)
	req.Header[headerHolder] = c.holder
	if t != (llmserver.Token{}) {
		req.Header.Set(headerToken, t.String())
	}
	resp, _, err := c.Backend.Do(req, t)
	if err != nil {
		return nil, llmserver.Report{}, err
	}
	report, _ := readReport(resp.Header)
	if err := refusal(resp.Header); err != nil {
		io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10)) // so that the connection can be used again
		resp.Body.Close()
		return nil, report, err
	}
	return resp, report, nil
}

// refusal is the error that a refused request's answer stands for; nil if it was let in.
func refusal(h http.Header) error {
	switch h.Get(headerRefused) {
	case "":
		return nil
	case refusedToken:
		return llmserver.ErrToken
	case refusedDraining:
		return llmserver.ErrDraining
	case refusedEngine:
		return fmt.Errorf("%w from the agent to its engine", llmserver.ErrNoConnection)
	default:
		return llmserver.ErrFull
	}
}

// Probe asks for the engine's health, which the agent passes on.
func (c *client) Probe(ctx context.Context) (llmserver.Report, error) {
	answer, err := c.call(ctx, http.MethodGet, "/internal/slots", "")
	if err != nil {
		return llmserver.Report{}, err
	}
	if answer.Instance == "" {
		return llmserver.Report{}, errNoAgent
	}
	if answer.Draining {
		return answer.decode(), nil // which says it all
	}
	_, err = c.control.Probe(ctx)
	return answer.decode(), err
}

var (
	errNoAgent   = errors.New("it does not speak the slot protocol of berth llmserver")
	errSecret    = errors.New("its agent refuses the slot secret")
	errAgentLate = errors.New("its agent did not respond in time")
)

// call makes a control call. They all may be made twice, so one that met a
// closing connection is. Whatever the second says, the first may have been heard.
func (c *client) call(ctx context.Context, method, path, body string) (slotReport, error) {
	answer, err := c.callOnce(ctx, method, path, body)
	if !errors.Is(err, llmserver.ErrStale) {
		return answer, err
	}
	answer, err = c.callOnce(ctx, method, path, body)
	if errors.Is(err, llmserver.ErrNoConnection) {
		return answer, llmserver.ErrBroken
	}
	return answer, err // ErrExhausted among them: it is not Refused either
}

// jsonType is shared by all calls; nobody writes to it.
var jsonType = []string{"application/json"}

func (c *client) callOnce(ctx context.Context, method, path, body string) (answer slotReport, err error) {
	req := (&http.Request{
		Method: method,
		URL:    &url.URL{Path: path},
		Header: http.Header{"Content-Type": jsonType, headerHolder: c.holder},
		Body:   http.NoBody,
	}).WithContext(ctx)
	if body != "" {
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	}
	if secret := *c.secret.Load(); secret != "" {
		req.Header.Set(headerSecret, secret)
	}
	resp, _, err := c.control.Do(req, llmserver.Token{})
	if err != nil {
		return answer, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	switch {
	case err != nil:
		return answer, llmserver.ErrBroken
	case resp.StatusCode == http.StatusForbidden:
		return answer, errSecret
	case resp.Header.Get(headerRefused) == refusedToken:
		return answer, llmserver.ErrToken
	case resp.StatusCode != http.StatusOK || json.Unmarshal(text, &answer) != nil:
		return answer, errNoAgent
	}
	return answer, nil
}
