package llmserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"berth/internal/http1"
	"berth/internal/tcp"
)

// idleTimeout bounds the life of an unused connection. The value is below the 5 s of common engines
// (uvicorn, and so vLLM and SGLang, and llama.cpp's default), so that a request seldom meets a
// connection about to be closed.
const idleTimeout = 4 * time.Second

// A netTransport is a transport over net/http's, for TLS, and for plain TCP where WireVariable
// requires.
//
// Unlike package http1, a netTransport does not wait until the server has released an aborted
// request: net/http closes the connection at once, so the slot may be free a moment early.
type netTransport struct {
	base      *url.URL
	options   atomic.Pointer[http1.ClientOptions]
	transport http.Transport
}

func newNetTransport(baseURL string, o http1.ClientOptions) (*netTransport, error) {
	base, err := url.Parse(baseURL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("the URL %q is not of the form http://host:port", baseURL)
	}
	t := &netTransport{base: base}
	t.SetOptions(o)
	t.transport = http.Transport{
		DialContext:            t.dialTCP,
		DialTLSContext:         t.dialTLS,
		DisableCompression:     true, // the client's own Accept-Encoding decides
		MaxIdleConnsPerHost:    MaxLimit,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: 256 << 10,
		WriteBufferSize:        32 << 10, // a usual prompt is one write
		Protocols:              new(http.Protocols),
	}
	t.transport.Protocols.SetHTTP1(true)
	return t, nil
}

// SetOptions replaces the options for later connections and requests.
func (t *netTransport) SetOptions(o http1.ClientOptions) { t.options.Store(&o) }

// Close closes idle connections.
func (t *netTransport) Close() { t.transport.CloseIdleConnections() }

func (t *netTransport) dialTCP(ctx context.Context, network, address string) (net.Conn, error) {
	o := t.options.Load()
	d := tcp.Dialer(o.ConnectTimeout)
	conn, err := d.DialContext(ctx, network, address)
	if err != nil || o.SendTimeout <= 0 {
		return conn, err
	}
	return tcp.WithSendTimeout(conn.(*net.TCPConn), o.SendTimeout), nil
}

// dialTLS connects and completes the handshake, both within one connect timeout.
func (t *netTransport) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	if timeout := t.options.Load().ConnectTimeout; timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	plain, err := t.dialTCP(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(plain, &tls.Config{ServerName: t.base.Hostname()})
	if err := conn.HandshakeContext(ctx); err != nil {
		plain.Close()
		return nil, err
	}
	return conn, nil
}

// Do sends the request, which must not have a GetBody: with one, net/http's transport could send
// twice.
func (t *netTransport) Do(req *http.Request) (*http.Response, error) {
	if req.GetBody != nil {
		panic("BUG: a request with GetBody could be sent twice")
	}
	ctx, trace := req.Context(), new(requestTrace)
	req = req.WithContext(httptrace.WithClientTrace(ctx, trace.clientTrace()))
	t.addressRequest(req)
	resp, err := t.transport.RoundTrip(req)
	if err == nil {
		return resp, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	failed := trace.failure(err)
	if failed.Stale() {
		t.transport.CloseIdleConnections() // they are as old, and one more attempt must not meet them
	}
	return nil, failed
}

// addressRequest completes the request's URL and, if the options have an API key, replaces the
// client's own. The caller's URL and header are not modified.
func (t *netTransport) addressRequest(req *http.Request) {
	u := *req.URL
	u.Scheme, u.Host = t.base.Scheme, t.base.Host
	if t.base.Path != "" {
		u.RawPath = t.base.EscapedPath() + u.EscapedPath()
		u.Path = t.base.Path + u.Path
	}
	req.URL, req.Host = &u, ""
	if key := t.options.Load().APIKey; key != "" {
		req.Header = maps.Clone(req.Header) // the caller's may be sent to another replica next
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Del("X-Api-Key")
	}
}

// A requestTrace records how far a request came.
type requestTrace struct {
	// Written by the goroutine of RoundTrip.
	connected, reused bool
	start             time.Time // when the request got its connection

	responseBegun atomic.Bool
}

func (t *requestTrace) clientTrace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn:              func(string) { t.connected = false }, // again, when a GET is retried
		GotConn:              func(c httptrace.GotConnInfo) { t.connected, t.reused, t.start = true, c.Reused, time.Now() },
		GotFirstResponseByte: func() { t.responseBegun.Store(true) },
	}
}

// failure returns the error of a request that failed with err.
func (t *requestTrace) failure(err error) *http1.Error {
	return &http1.Error{Connected: t.connected, Reused: t.reused, ResponseBegun: t.responseBegun.Load(), Start: t.start, Err: err}
}
