package llmserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"berth/internal/tcp"
)

// idleTimeout is how long an unused connection is kept. It stays below the
// 5 s after which common engines (uvicorn's, and so vLLM's and SGLang's, and
// llama.cpp's default) close one, so that a request seldom meets a closing connection.
const idleTimeout = 4 * time.Second

// HTTP is the backend of an engine behind TLS, over net/http's transport. It knows nothing of slots:
// the gate alone counts, so reserving and cancelling are free.
//
// Unlike those of package http1, an aborted request does not wait until the engine has let go: the
// transport closes the connection by itself, at once, so the slot may be free a moment early.
type HTTP struct {
	base      *url.URL
	endpoint  atomic.Pointer[Endpoint]
	transport *http.Transport
}

// DialHTTP makes the backend of a plain engine. It connects only when a
// request needs it. The error says what is wrong with the URL.
func DialHTTP(e Endpoint) (*HTTP, error) {
	base, err := url.Parse(e.URL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("the URL %q is not of the form http://host:port", e.URL)
	}
	h := &HTTP{base: base}
	h.Describe(e)
	h.transport = &http.Transport{
		DialContext:            h.dial,
		DialTLSContext:         h.dialTLS,
		DisableCompression:     true, // the client's own Accept-Encoding decides
		MaxIdleConnsPerHost:    MaxLimit,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: 256 << 10,
		WriteBufferSize:        32 << 10, // a usual prompt goes out in one write
		Protocols:              new(http.Protocols),
	}
	h.transport.Protocols.SetHTTP1(true)
	return h, nil
}

// Describe takes over what may change while the replica lives: key and deadline.
func (h *HTTP) Describe(e Endpoint) { h.endpoint.Store(&e) }

func (h *HTTP) dial(ctx context.Context, network, address string) (net.Conn, error) {
	e := h.endpoint.Load()
	d := tcp.Dialer(e.ConnectTimeout)
	conn, err := d.DialContext(ctx, network, address)
	if err != nil || e.SendTimeout <= 0 {
		return conn, err
	}
	return tcp.WithSendTimeout(conn.(*net.TCPConn), e.SendTimeout), nil
}

// dialTLS connects and shakes hands, both within the one deadline.
func (h *HTTP) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	if timeout := h.endpoint.Load().ConnectTimeout; timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, timeout)
		defer stop()
	}
	plain, err := h.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(plain, &tls.Config{ServerName: h.base.Hostname()})
	if err := conn.HandshakeContext(ctx); err != nil {
		plain.Close()
		return nil, err
	}
	return conn, nil
}

// Reserve holds nothing: the engine does not count.
func (h *HTTP) Reserve(context.Context, Token, time.Duration) (Report, error) {
	return Report{}, nil
}

// Cancel gives back nothing.
func (h *HTTP) Cancel(context.Context, Token) (Report, error) { return Report{}, nil }

// Close lets go of idle connections.
func (h *HTTP) Close() { h.transport.CloseIdleConnections() }

// Do sends the request. net/http's transport would send a request again by
// itself only if it could have its body anew, so the request must not have a GetBody.
func (h *HTTP) Do(req *http.Request, _ Token) (*http.Response, Report, error) {
	if req.GetBody != nil {
		panic("BUG: a request with GetBody could be sent twice")
	}
	trip := &trip{}
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), trip.trace()))
	h.address(req)
	resp, err := h.transport.RoundTrip(req)
	if err == nil {
		return resp, Report{}, nil
	}
	err = trip.progress().Failure(req.Context(), err)
	if errors.Is(err, ErrStale) {
		h.transport.CloseIdleConnections() // they are as old, and the one more try that is allowed must not meet them
	}
	return nil, Report{}, err
}

// address completes the request's URL and, if the replica has a key of its own, puts that in place of the client's.
func (h *HTTP) address(req *http.Request) {
	u := *req.URL
	u.Scheme, u.Host = h.base.Scheme, h.base.Host
	if h.base.Path != "" {
		u.RawPath = h.base.EscapedPath() + u.EscapedPath()
		u.Path = h.base.Path + u.Path
	}
	req.URL, req.Host = &u, ""
	if key := h.endpoint.Load().APIKey; key != "" {
		req.Header = maps.Clone(req.Header) // the caller's may go to another replica next
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Del("X-Api-Key")
	}
}

// Probe asks for /health. Any answer below 500 counts: an engine without that
// path is alive too, while one that loads its model answers 503.
func (h *HTTP) Probe(ctx context.Context) (Report, error) { return ProbeHealth(ctx, h.Do) }

// trip follows one request through the transport to tell how far it came.
type trip struct {
	// Written by RoundTrip's own goroutine.
	connected, reused bool
	at                time.Time // when it was connected

	answered atomic.Bool
}

func (t *trip) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn:              func(string) { t.connected = false }, // again where a GET is replayed
		GotConn:              func(c httptrace.GotConnInfo) { t.connected, t.reused, t.at = true, c.Reused, time.Now() },
		GotFirstResponseByte: func() { t.answered.Store(true) },
	}
}

func (t *trip) progress() Progress {
	return Progress{Connected: t.connected, Reused: t.reused, Answered: t.answered.Load(), At: t.at}
}
