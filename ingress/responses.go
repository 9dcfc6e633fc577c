package ingress

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel/trace"

	"berth/llmserver"
)

var (
	errNoResponse   = errors.New("response not found")
	errOwnerUnknown = errors.New("No replica that answers holds this response, but not all of them answer; try again later.")
)

// storedResponse tells the path of a stored response, and its id.
func storedResponseID(p string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(p, "/v1"), "/responses/")
	id, _, _ = strings.Cut(rest, "/")
	return id, ok && isResponseID(id)
}

// response serves a request for a stored response: GET, DELETE, its items, or to cancel it. It goes, without a slot, to
// the replica that holds the response. Its path names no model.
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

// reach finds the replica that holds the response, and has it answer.
func (x *proxyRequest) serveStored() error {
	c := x.c
	id, ok := storedResponseID(c.Request.URL.Path)
	if !ok {
		return errUnknownPath
	}
	m, holder, err := x.findOwner(id, keyOf(c).filterAllowed(x.registry.table.Load().models))
	switch {
	case err != nil:
		return err
	case holder == nil:
		return fmt.Errorf("%w: %s", errNoResponse, id)
	}
	x.model = m
	x.visit.model, x.visit.metrics = m.config.ID, m.metrics
	return x.forward(holder)
}

// call passes a request without body and slot on to one replica. One that met a closing connection is sent once more: it
// changes nothing more than the first would have.
func (x *proxyRequest) forward(replica *llmserver.Replica) error {
	ctx, stop := x.withTotalTimeout(x.c.Request.Context())
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

// bind has a request that goes on with a stored response served by the replica that holds it: there it waits, and nowhere
// else. Where nobody holds it, whichever engine gets the request says so in its own words.
func (x *proxyRequest) pin(id string) error {
	if !isResponseID(id) || len(x.model.replicas) == 1 {
		return nil
	}
	_, holder, err := x.findOwner(id, []*model{x.model})
	x.payload.PinnedTo = holder
	return err
}
