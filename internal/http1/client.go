package http1

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"

	"berth/internal/tcp"
	"berth/llmserver"
)

// Client is the backend of a server that is reached over plain TCP. It knows nothing of slots, so
// reserving and cancelling are free. It is used by many goroutines at once.
type Client struct {
	base     *url.URL
	address  string // to connect to
	host     string // as the Host field tells it
	endpoint atomic.Pointer[llmserver.Endpoint]
	pool     connPool
}

var _ llmserver.Backend = (*Client)(nil)

// WireVariable is the environment variable by which, if its value is PlainWire, Go's net/http speaks to replicas in place
// of a Client. The ingress and its server go by it, too.
const (
	WireVariable = "BERTH_WIRE"
	PlainWire    = "net/http"
)

// Dial returns the HTTP backend of an engine or an agent: a Client, or an llmserver.HTTP over TLS or where the environment
// says so. It connects only when a request needs it. The error says what is wrong with the URL.
func Dial(e llmserver.Endpoint) (llmserver.Backend, error) {
	if strings.HasPrefix(e.URL, "https://") || os.Getenv(WireVariable) == PlainWire {
		return llmserver.DialHTTP(e)
	}
	return newClient(e)
}

func newClient(e llmserver.Endpoint) (*Client, error) {
	base, err := url.Parse(e.URL)
	if err != nil || base.Host == "" || base.Scheme != "http" {
		return nil, fmt.Errorf("the URL %q is not of the form http://host:port", e.URL)
	}
	host, err := httpguts.PunycodeHostPort(base.Host)
	if err != nil {
		return nil, fmt.Errorf("the URL %q has a host that is no name: %w", e.URL, err)
	}
	at := url.URL{Host: host}
	c := &Client{
		base:    base,
		address: net.JoinHostPort(at.Hostname(), cmp.Or(at.Port(), "80")),
		host:    withoutZone(host),
	}
	c.Describe(e)
	return c, nil
}

// withoutZone takes the zone out of a link-local address, which means nothing to anyone else.
func withoutZone(host string) string {
	before, zone, found := strings.Cut(host, "%")
	if !found {
		return host
	}
	return before + zone[max(0, strings.IndexByte(zone, ']')):]
}

// Describe takes over what may change while the replica lives: key and deadline.
func (c *Client) Describe(e llmserver.Endpoint) { c.endpoint.Store(&e) }

// Reserve holds nothing: the engine does not count.
func (c *Client) Reserve(context.Context, llmserver.Token, time.Duration) (llmserver.Report, error) {
	return llmserver.Report{}, nil
}

// Cancel gives back nothing.
func (c *Client) Cancel(context.Context, llmserver.Token) (llmserver.Report, error) {
	return llmserver.Report{}, nil
}

// Close lets go of idle connections, and of those under way when their
// answers end. Requests are still served, each on a connection of its own.
func (c *Client) Close() { c.pool.close() }

// Do sends the request and returns when the head of the answer is there.
// ContentLength must be exact: never unknown, and never zero for a body that has bytes.
// The request's body is read and closed before Do returns. The error of a request that cannot be
// written as HTTP is none of those that Backend names, for it says nothing of the replica.
//
// The answer's body may be closed by any goroutine, while another one reads.
func (c *Client) Do(req *http.Request, _ llmserver.Token) (*http.Response, llmserver.Report, error) {
	if req.ContentLength < 0 {
		panic("BUG: a request of unknown length")
	}
	x, err := c.startRequest(req)
	if err == nil {
		err = x.receive()
	}
	if err == nil {
		return &x.response, llmserver.Report{}, nil
	}
	if errors.Is(err, llmserver.ErrStale) {
		c.pool.closeIdle() // they are as old, and the one more try that is allowed must not meet them
	}
	return nil, llmserver.Report{}, err
}

// send brings the request to the replica. After an error nothing is left of the exchange.
func (c *Client) startRequest(req *http.Request) (*roundTrip, error) {
	if req.Body != nil {
		defer req.Body.Close()
	}
	conn, err := c.getConn(req.Context())
	if err != nil {
		return nil, err
	}
	page := requestBuffers.Get().(*requestBuffer)
	defer requestBuffers.Put(page)
	head, err := c.appendHeader(page[:0], req)
	if err != nil {
		c.pool.putConn(conn)
		return nil, err
	}
	conn.sendTimeout = c.endpoint.Load().SendTimeout
	x := newRoundTrip(req, conn, &c.pool)
	err = x.sendRequest(head)
	if x.sendTimedOut {
		err = tcp.ErrSendTimeout
	}
	if err != nil {
		return nil, x.failWith(err)
	}
	return x, nil
}

// connect takes the idle connection that was used last, or makes a new one.
func (c *Client) getConn(ctx context.Context) (*clientConn, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if conn := c.pool.takeConn(); conn != nil {
		return conn, nil
	}
	d := tcp.Dialer(c.endpoint.Load().ConnectTimeout)
	nc, err := d.DialContext(ctx, "tcp", c.address)
	if err != nil {
		return nil, llmserver.Progress{}.Failure(ctx, err)
	}
	return newClientConn(tcp.Wrap(nc)), nil
}

// Probe asks for /health.
func (c *Client) Probe(ctx context.Context) (llmserver.Report, error) {
	return llmserver.ProbeHealth(ctx, c.Do)
}
