package http1

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"golang.org/x/net/http/httpguts"
)

// A requestBuffer is the memory in which a request is composed, for one write per 64 KiB. A request
// holds a buffer only while being written.
type requestBuffer [64 << 10]byte

var requestBuffers = sync.Pool{New: func() any { return new(requestBuffer) }}

var errInvalidAPIKey = errors.New("the replica's key cannot be sent")

// appendHeader appends the request's header to b: all fields as given, except for the framing, the
// Host and, if the options have an API key, the client's own. No User-Agent is added. An error
// names the invalid part, without the value.
func (c *Client) appendHeader(b []byte, req *http.Request) ([]byte, error) {
	method := req.Method
	if method == "" {
		method = http.MethodGet
	}
	if !httpguts.ValidHeaderFieldName(method) { // both are tokens
		return nil, fmt.Errorf("the method %q cannot be sent", method)
	}
	b = append(b, method...)
	b = append(b, ' ')
	b = c.appendTarget(b, req.URL)
	b = append(b, " HTTP/1.1\r\n"...)
	b = appendFieldLine(b, "Host", c.host)
	key := c.options.Load().APIKey // once: SetOptions may be called meanwhile
	if key != "" {
		if !httpguts.ValidHeaderFieldValue(key) {
			return nil, errInvalidAPIKey
		}
		b = append(b, "Authorization: Bearer "...)
		b = append(append(b, key...), crlf...)
	}
	b, err := appendHeaderFields(b, req.Header, key != "")
	if err != nil {
		return nil, err
	}
	if req.ContentLength > 0 || method != http.MethodGet && method != http.MethodHead {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, req.ContentLength, 10)
		b = append(b, crlf...)
	}
	return append(b, crlf...), nil
}

// appendTarget appends the base path, the request's own path and the query. Characters that would
// end the request line are escaped: a client of HTTP/2 can send a space in a query.
func (c *Client) appendTarget(b []byte, u *url.URL) []byte {
	start := len(b)
	if c.base.Path != "" {
		b = append(b, c.base.EscapedPath()...)
	}
	b = append(b, u.EscapedPath()...)
	if len(b) == start {
		b = append(b, '/')
	}
	if u.ForceQuery || u.RawQuery != "" {
		b = append(b, '?')
	}
	for _, char := range []byte(u.RawQuery) {
		if char <= ' ' || char == 0x7f {
			b = fmt.Appendf(b, "%%%02X", char)
		} else {
			b = append(b, char)
		}
	}
	return b
}

// appendHeaderFields appends the fields of the caller, without those set by the Client. hasKey
// reports whether the Client has an API key of its own, which replaces the caller's.
func appendHeaderFields(b []byte, header http.Header, hasKey bool) ([]byte, error) {
	for name, values := range header {
		switch name {
		case "Host", "Content-Length", "Transfer-Encoding", "Trailer":
			continue
		case "Authorization", "X-Api-Key":
			if hasKey {
				continue
			}
		}
		if len(values) > 0 && !httpguts.ValidHeaderFieldName(name) {
			return nil, fmt.Errorf("the header field %q cannot be sent", name)
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldValue(value) {
				return nil, fmt.Errorf("the value of the header field %s cannot be sent", name)
			}
			b = appendFieldLine(b, name, value)
		}
	}
	return b, nil
}
