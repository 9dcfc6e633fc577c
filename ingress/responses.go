package ingress

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel/trace"

	"berth/llmserver"
)

// serveStoredResponse serves requests for a stored response: GET, DELETE, its input items, and its
// cancellation. It forwards them, without a slot, to the replica that holds the response. Their paths
// name no model.
func (s *Server) serveStoredResponse(c *gin.Context) {
	leaveUnread(c)
	x := stateOf(c).exchanging(s, c, phaseConnect)
	var err error
	if x.allowed, err = requestTimeout(c.Request.Header); err == nil {
		err = x.serveStored()
	}
	if err != nil {
		x.fail(err)
	}
}

// serveStored finds the replica that holds the response and forwards the request to it.
func (x *proxyRequest) serveStored() error {
	c := x.c
	id, ok := storedResponseID(c.Request.URL.Path)
	if !ok {
		return errUnknownPath
	}
	m, owner, err := x.lookups.findOwner(c.Request, id, filterAllowed(x.registry.table.Load().models, keyOf(c)))
	switch {
	case err != nil:
		return err
	case owner == nil:
		return fmt.Errorf("%w: %s", errNoResponse, id)
	}
	x.model = m
	x.visit.model, x.visit.metrics = m.config.ID, m.metrics
	return x.forward(owner)
}

// forward sends a request without body and slot to one replica and relays the response. If the
// connection was being closed, the request is sent once more: these requests are idempotent.
func (x *proxyRequest) forward(replica *llmserver.Replica) error {
	ctx, stop := withTotalTimeout(x.c.Request.Context(), x.began, x.model.config.TotalTimeout, x.allowed)
	defer stop()
	x.replica, x.rank, x.attempts = replica.ID(), 1, 1
	ctx, x.span = x.tracing.begin(ctx, "attempt", trace.SpanKindClient)
	defer x.attempted(x.span)
	send := func() (*http.Response, error) {
		req := outgoing(ctx, x.c.Request)
		req.Header = x.tracing.inject(ctx, req.Header)
		req.Header.Del("Content-Type")
		x.phase, x.dispatched = phaseFirstByte, time.Now()
		return replica.Call(req)
	}
	resp, err := send()
	if errors.Is(err, llmserver.ErrStale) {
		resp, err = send()
	}
	if err != nil {
		x.upstreamFailed(err)
		return err
	}
	defer resp.Body.Close()
	x.phase = phaseStreaming
	resp.Header.Del(requestIDHeader)
	relay := x.relaying(x.c.Request.URL.Path, 0)
	if x.result, err = relay.Copy(x.c.Request.Context(), x.c.Writer, resp, nil); err != nil {
		x.upstreamFailed(err)
		if x.result.Started {
			x.abort(err)
		}
	}
	return err
}
