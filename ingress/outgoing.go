package ingress

import (
	"context"
	"net/http"
	"net/url"

	"berth/internal/openai"
	"berth/streaming"
)

// outgoing is a request that takes no slot as a replica is to see it, yet without a body. Unlike exchange.request it may be
// called more than once at a time.
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
