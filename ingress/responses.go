package ingress

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"berth/ingress/telemetry"
	"berth/llmserver"
	"berth/routers"
)

// serveStoredResponse serves requests for a stored response: GET, DELETE, the input items, and
// cancellation. serveStoredResponse forwards them, without a slot, to the replica with the
// response. The paths of such requests name no model.
func (s *Server) serveStoredResponse(c *gin.Context) {
	leaveUnread(c)
	x := stateOf(c).newProxyRequest(s, c, telemetry.PhaseConnect)
	defer x.reportLastFailure()
	var err error
	if x.allowed, err = requestTimeout(c.Request.Header); err == nil {
		err = x.serveStored()
	}
	if err != nil {
		x.respondError(err)
	}
}

// serveStored looks up the replica with the response, among the models allowed for the client's
// key, and forwards the request there.
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
	x.record.Model, x.record.Policy, x.record.Metrics = m.config.ID, m.config.Router.Class, m.metrics
	return x.forwardStored(owner)
}

// forwardStored sends a request without body and slot to one replica and relays the response. After
// a stale connection, the request is sent once more: such requests are idempotent.
func (x *proxyRequest) forwardStored(replica *llmserver.Replica) error {
	ctx, stop := withTotalTimeout(x.c.Request.Context(), x.record.Start, x.model.config.TotalTimeout, x.allowed)
	defer stop()
	x.record.Replica, x.record.Rank, x.record.Attempts = replica.ID(), 1, 1
	ctx, x.span = x.telemetry.StartAttempt(ctx)
	defer x.span.EndAttempt(x.record)
	send := func() (*http.Response, error) {
		req := outgoing(ctx, x.c.Request)
		req.Header = x.telemetry.InjectTrace(ctx, req.Header)
		req.Header.Del("Content-Type")
		x.record.Phase, x.record.Dispatched = telemetry.PhaseFirstByte, time.Now()
		return replica.Call(req)
	}
	resp, err := send()
	if errors.Is(err, llmserver.ErrStale) {
		resp, err = send()
	}
	outcome := routers.Outcome{Dispatched: true, Err: err}
	defer func() { x.model.metrics.Replica(replica).CountAttempt(x.record, outcome) }()
	if err != nil {
		x.recordUpstreamError(err)
		return err
	}
	outcome.Served, outcome.Status = true, resp.StatusCode
	defer resp.Body.Close()
	x.record.Phase = telemetry.PhaseStreaming
	resp.Header.Del(requestIDHeader)
	relay := x.relayFor(x.c.Request.URL.Path, 0)
	if x.record.Response, err = relay.Copy(x.c.Request.Context(), x.c.Writer, resp, nil); err != nil {
		outcome.Err = err
		x.recordUpstreamError(err)
		if x.record.Response.Started {
			x.abort(err)
		}
	}
	return err
}
