package http1

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"golang.org/x/net/http/httpguts"
)

// A requestPage is where a request is put together, so that it goes out in
// one write, or one per page. It is held only while the request is written.
type requestBuffer [64 << 10]byte

var requestBuffers = sync.Pool{New: func() any { return new(requestBuffer) }}

// appendHead appends the request's head to b: header fields as given, but for
// the framing and the Host, and the client's key if the replica has one of its own. No User-Agent is made up.
// The error says what cannot be sent, without its value.
func (c *Client) appendHeader(b []byte, req *http.Request) ([]byte, error) {
	method := req.Method
	if method == "" {
		method = http.MethodGet
	}
	if !httpguts.ValidHeaderFieldName(method) { // which is a token, as a method is
		return nil, fmt.Errorf("the method %q cannot be sent", method)
	}
	b = append(b, method...)
	b = append(b, ' ')
	b = c.appendTarget(b, req.URL)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, c.host...)
	b = append(b, "\r\n"...)
	if key := c.endpoint.Load().APIKey; key != "" {
		if !httpguts.ValidHeaderFieldValue(key) {
			return nil, fmt.Errorf("the replica's key cannot be sent")
		}
		b = appendField(b, "Authorization", "Bearer "+key)
	}
	b, err := c.appendHeaderFields(b, req.Header)
	if err != nil {
		return nil, err
	}
	if req.ContentLength > 0 || method != http.MethodGet && method != http.MethodHead {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, req.ContentLength, 10)
		b = append(b, "\r\n"...)
	}
	return append(b, "\r\n"...), nil
}

// appendTarget appends the base path, the request's own, and its query. What
// would end the line is escaped: a client of HTTP/2 can put a space there.
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

func (c *Client) appendHeaderFields(b []byte, header http.Header) ([]byte, error) {
	keyed := c.endpoint.Load().APIKey != ""
	for name, values := range header {
		switch name {
		case "Host", "Content-Length", "Transfer-Encoding", "Trailer":
			continue
		case "Authorization", "X-Api-Key":
			if keyed {
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
			b = appendField(b, name, value)
		}
	}
	return b, nil
}

func appendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}
