package http1

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"

	"berth/internal/tcp"
)

// A Client sends requests to one server over plain TCP. All methods may be called from any
// goroutine at any time.
type Client struct {
	base    *url.URL
	address string // to connect to
	host    string // the Host field
	options atomic.Pointer[ClientOptions]
	pool    connPool
}

// ClientOptions are the settings of a Client. They may be changed at any time, see SetOptions.
type ClientOptions struct {
	ConnectTimeout time.Duration // of a new connection; 0 means no timeout
	SendTimeout    time.Duration // for the server to read more of a request; 0 means no timeout
	// APIKey, if not empty, is sent as a bearer token in place of the request's own Authorization
	// and X-Api-Key fields.
	APIKey string
}

// NewClient returns a Client for the server at baseURL, of the form http://host:port. The path of
// baseURL, if any, is prepended to the path of each request. NewClient does not connect:
// connections are opened by Do.
func NewClient(baseURL string, o ClientOptions) (*Client, error) {
	base, err := url.Parse(baseURL)
	if err != nil || base.Host == "" || base.Scheme != "http" {
		return nil, fmt.Errorf("the URL %q is not of the form http://host:port", baseURL)
	}
	host, err := httpguts.PunycodeHostPort(base.Host)
	if err != nil {
		return nil, fmt.Errorf("the URL %q has an invalid host name: %w", baseURL, err)
	}
	ascii := url.URL{Host: host}
	c := &Client{
		base:    base,
		address: net.JoinHostPort(ascii.Hostname(), cmp.Or(ascii.Port(), "80")),
		host:    withoutZone(host),
	}
	c.SetOptions(o)
	return c, nil
}

// withoutZone removes the zone of a link-local IPv6 address. A zone has no meaning on another
// machine.
func withoutZone(host string) string {
	before, zone, found := strings.Cut(host, "%")
	if !found {
		return host
	}
	return before + zone[max(0, strings.IndexByte(zone, ']')):]
}

// SetOptions replaces the options for later requests. A request still waiting for a connection may
// be sent with the new options.
func (c *Client) SetOptions(o ClientOptions) { c.options.Store(&o) }

// Close closes the idle connections at once, and each active connection at the end of the current
// response; Close does not wait for these. Later requests are still served, each on a new
// connection. A second call does nothing.
func (c *Client) Close() { c.pool.closePool() }

// Do sends a request, once, and returns when the response header has been read. Only path and query
// of the request's URL are used. ContentLength must be exact: never unknown, and never zero for a
// body with bytes. The request's body is read, in the calling goroutine, and closed before Do
// returns.
//
// Do blocks until the header has arrived, the connection has failed or the context of the request
// has ended. After a failure, or the context's end, Do gives the server up to 250 ms more to close
// the connection, as Close of the response body does.
//
// If the context has ended, the error is the cause of the context's end. If the connection failed
// or the response was invalid, the error is an *Error. Any other error means that the request
// cannot be written as HTTP; nothing was sent then.
//
// The body of the response must be closed. Close may be called by any goroutine, also during a Read
// by another. Before the end of the body Close blocks for up to 250 ms, waiting for the server to
// release the request; later calls return at once.
func (c *Client) Do(req *http.Request) (*http.Response, error) {
	if req.ContentLength < 0 {
		panic("BUG: a request of unknown length")
	}
	rt, err := c.startRequest(req)
	if err == nil {
		err = rt.receiveResponse()
	}
	if err == nil {
		return &rt.response, nil
	}
	if failed, ok := errors.AsType[*Error](err); ok && failed.Stale() {
		c.pool.closeIdle() // probably stale too; another attempt must not take one
	}
	return nil, err
}

// startRequest takes a connection and sends the request. After an error there is no round trip: the
// connection is closed, or back in the pool.
func (c *Client) startRequest(req *http.Request) (*roundTrip, error) {
	if req.Body != nil {
		defer req.Body.Close()
	}
	conn, err := c.getConn(req.Context())
	if err != nil {
		return nil, err
	}
	buf := requestBuffers.Get().(*requestBuffer)
	defer requestBuffers.Put(buf)
	header, err := c.appendHeader(buf[:0], req)
	if err != nil {
		c.pool.putConn(conn)
		return nil, err
	}
	conn.sendTimeout = c.options.Load().SendTimeout
	rt := newRoundTrip(req, conn, &c.pool)
	err = rt.sendRequest(header)
	if rt.sendTimedOut {
		err = tcp.ErrSendTimeout
	}
	if err != nil {
		return nil, rt.failWith(err)
	}
	return rt, nil
}

// getConn returns the most recently used idle connection, or a new one. Connecting blocks until the
// connect timeout or the end of ctx. The caller owns the connection.
func (c *Client) getConn(ctx context.Context) (*clientConn, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if conn := c.pool.takeConn(); conn != nil {
		return conn, nil
	}
	d := tcp.Dialer(c.options.Load().ConnectTimeout)
	nc, err := d.DialContext(ctx, "tcp", c.address)
	switch {
	case err == nil:
		return newClientConn(tcp.Wrap(nc)), nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	default:
		return nil, &Error{Err: err}
	}
}
