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

// Client sends requests to one server over plain TCP. Its methods may be called from any goroutine.
type Client struct {
	base    *url.URL
	address string // to connect to
	host    string // the Host field
	options atomic.Pointer[ClientOptions]
	pool    connPool
}

// ClientOptions are the settings of a Client that may change while it is in use.
type ClientOptions struct {
	ConnectTimeout time.Duration // of a new connection; 0 means no timeout
	SendTimeout    time.Duration // while the server reads nothing of a request; 0 means no timeout
	// APIKey, if not empty, is sent as a bearer token in place of the request's own Authorization
	// and X-Api-Key fields.
	APIKey string
}

// NewClient returns a Client for the server at baseURL, of the form http://host:port, whose path, if
// any, is prepended to that of each request. It connects only when a request needs a connection.
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

// withoutZone removes the zone of a link-local IPv6 address, which has no meaning on another machine.
func withoutZone(host string) string {
	before, zone, found := strings.Cut(host, "%")
	if !found {
		return host
	}
	return before + zone[max(0, strings.IndexByte(zone, ']')):]
}

// SetOptions replaces the options for requests that begin from now on.
func (c *Client) SetOptions(o ClientOptions) { c.options.Store(&o) }

// Close closes idle connections, and active ones when their responses end. Later requests are still
// served, each on a new connection.
func (c *Client) Close() { c.pool.close() }

// Do sends a request, once, and returns when the response header has been read. Of the request's URL
// it uses path and query. ContentLength must be exact: never unknown, and never zero for a body that
// has bytes. The request's body is read and closed before Do returns.
//
// If the context of the request has ended, the error is the cause of that. If the connection failed
// or the response was invalid, it is an *Error. Any other error means that the request cannot be
// written as HTTP; nothing was sent then.
//
// The body of the response must be closed, by any goroutine, also while another one reads it.
func (c *Client) Do(req *http.Request) (*http.Response, error) {
	if req.ContentLength < 0 {
		panic("BUG: a request of unknown length")
	}
	rt, err := c.startRequest(req)
	if err == nil {
		err = rt.receive()
	}
	if err == nil {
		return &rt.response, nil
	}
	if failed, ok := errors.AsType[*Error](err); ok && failed.Stale() {
		c.pool.closeIdle() // they are as old, and one more attempt must not meet them
	}
	return nil, err
}

// startRequest sends the request. After an error the round trip has released everything.
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

// getConn returns the idle connection that was used last, or a new one.
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
