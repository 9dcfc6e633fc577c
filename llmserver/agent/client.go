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

// controlTimeout bounds a control call, in addition to the queueing time of a reservation.
const controlTimeout = 2 * time.Second

// A client is the Backend of a replica with an agent. Requests and control calls use separate
// connections, because only requests carry the engine's key.
type client struct {
	llmserver.Backend                   // for requests
	controlBackend    llmserver.Backend // for control calls
	holder            []string          // value of X-Slot-Holder
	secret            atomic.Pointer[string]
}

// Dial returns the backend of a replica with an agent. The first call connects, not Dial. Each
// backend is a separate holder towards the agent.
func Dial(e llmserver.Endpoint) (llmserver.Backend, error) {
	requests, err := llmserver.DialHTTP(e)
	if err != nil {
		return nil, err
	}
	control, err := llmserver.DialHTTP(e)
	if err != nil {
		return nil, err
	}
	c := &client{Backend: requests, controlBackend: control, holder: []string{uuid.NewString()}}
	c.Describe(e)
	return c, nil
}

// Describe sets keys and timeouts.
func (c *client) Describe(e llmserver.Endpoint) {
	c.secret.Store(&e.SlotSecret)
	c.Backend.Describe(e)
	e.APIKey, e.ProbePath = "", "" // of the engine; the agent has a path of its own
	c.controlBackend.Describe(e)
}

// Close closes idle connections.
func (c *client) Close() {
	c.Backend.Close()
	c.controlBackend.Close()
}

// Reserve reserves a slot at the agent and queues there for at most wait.
func (c *client) Reserve(ctx context.Context, t llmserver.Token, wait time.Duration) (llmserver.Report, error) {
	ctx, stop := context.WithTimeoutCause(ctx, wait+controlTimeout, errAgentTimeout)
	defer stop()
	body := fmt.Sprintf(`{"token":%q,"lease_s":%g,"wait_ms":%d}`, t, DefaultLease.Seconds(), wait.Milliseconds())
	reply, err := c.control(ctx, http.MethodPost, "/internal/slots", body)
	report := reply.toReport()
	switch {
	case err != nil:
		return report, err
	case reply.Accepted == nil:
		return report, errNoAgent
	case *reply.Accepted:
		return report, nil
	case reply.Draining:
		return report, llmserver.ErrDraining
	default:
		return report, llmserver.ErrFull
	}
}

// Cancel releases a reservation, also one with a lost reply. A failed connect is tried once more:
// other calls may have left an idle connection meanwhile.
func (c *client) Cancel(ctx context.Context, t llmserver.Token) (llmserver.Report, error) {
	path := "/internal/slots/" + t.String()
	reply, err := c.control(ctx, http.MethodDelete, path, "")
	if errors.Is(err, llmserver.ErrNoConnection) {
		reply, err = c.control(ctx, http.MethodDelete, path, "")
	}
	return reply.toReport(), err
}

// Do sends a request that consumes the token. A refusal by the agent becomes a Refused error (see
// llmserver.Refused), because the engine has seen nothing of the request.
func (c *client) Do(req *http.Request, t llmserver.Token) (*http.Response, llmserver.Report, error) {
	req = req.WithContext(req.Context()) // the caller may send the same header to another replica
	req.Header = maps.Clone(req.Header)
	req.Header[headerHolder] = c.holder
	if t != (llmserver.Token{}) {
		req.Header.Set(headerToken, t.String())
	}
	resp, _, err := c.Backend.Do(req, t)
	if err != nil {
		return nil, llmserver.Report{}, err
	}
	report, _ := parseReportHeader(resp.Header)
	if err := refusalError(resp.Header); err != nil {
		io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10)) // so that the connection can be reused
		resp.Body.Close()
		return nil, report, err
	}
	return resp, report, nil
}

// refusalError returns the error for the X-Slot-Refused of a response, nil if the request was
// admitted.
func refusalError(h http.Header) error {
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

// Probe reads the agent's counts and the engine's health, which the agent's /health returns.
func (c *client) Probe(ctx context.Context) (llmserver.Report, error) {
	reply, err := c.control(ctx, http.MethodGet, "/internal/slots", "")
	if err != nil {
		return llmserver.Report{}, err
	}
	if reply.Instance == "" {
		return llmserver.Report{}, errNoAgent
	}
	if reply.Draining {
		return reply.toReport(), nil // the report is enough
	}
	_, err = c.controlBackend.Probe(ctx)
	return reply.toReport(), err
}

var (
	errNoAgent      = errors.New("does not implement the slot protocol of berth llmserver")
	errSecret       = errors.New("agent rejected the slot secret")
	errAgentTimeout = errors.New("agent timed out")
)

// control makes a control call. All control calls are idempotent, so one that failed on a stale
// connection is repeated once. The agent may have received the first call even so; therefore the
// failure of the second one is never a Refused error.
func (c *client) control(ctx context.Context, method, path, body string) (slotReport, error) {
	reply, err := c.controlOnce(ctx, method, path, body)
	if !errors.Is(err, llmserver.ErrStale) {
		return reply, err
	}
	reply, err = c.controlOnce(ctx, method, path, body)
	if errors.Is(err, llmserver.ErrNoConnection) {
		return reply, llmserver.ErrBroken
	}
	return reply, err // possibly ErrExhausted, which is not Refused
}

// jsonContentType is shared by all calls and never modified.
var jsonContentType = []string{"application/json"}

// controlOnce makes one control call and maps its failures to errors.
func (c *client) controlOnce(ctx context.Context, method, path, body string) (reply slotReport, err error) {
	req := (&http.Request{
		Method: method,
		URL:    &url.URL{Path: path},
		Header: http.Header{"Content-Type": jsonContentType, headerHolder: c.holder},
		Body:   http.NoBody,
	}).WithContext(ctx)
	if body != "" {
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	}
	if secret := *c.secret.Load(); secret != "" {
		req.Header.Set(headerSecret, secret)
	}
	resp, _, err := c.controlBackend.Do(req, llmserver.Token{})
	if err != nil {
		return reply, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	switch {
	case err != nil:
		return reply, llmserver.ErrBroken
	case resp.StatusCode == http.StatusForbidden:
		return reply, errSecret
	case resp.Header.Get(headerRefused) == refusedToken:
		return reply, llmserver.ErrToken
	case resp.StatusCode != http.StatusOK || json.Unmarshal(text, &reply) != nil:
		return reply, errNoAgent
	}
	return reply, nil
}
