package ingress

import (
	"context"
	"net/http"
	"net/url"

	"berth/internal/openai"
	"berth/streaming"
)

// outgoing returns the form of a client's request for a replica, without a body, for requests
// without a slot. Unlike upstreamRequest, outgoing copies header and URL, so in stays unchanged and
// concurrent calls with the same in are safe.
func outgoing(ctx context.Context, in *http.Request) *http.Request {
	prefix := openai.VersionPrefix(in.URL.Path)
	out := &http.Request{
		Method: in.Method,
		URL:    &url.URL{Path: prefix + in.URL.Path, RawQuery: in.URL.RawQuery},
		Header: make(http.Header, len(in.Header)),
		Body:   http.NoBody,
	}
	if in.URL.RawPath != "" {
		out.URL.RawPath = prefix + in.URL.RawPath
	}
	streaming.CopyRequestHeader(out.Header, in.Header)
	return out.WithContext(ctx)
}
