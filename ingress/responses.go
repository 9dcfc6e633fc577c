package ingress

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"berth/ingress/telemetry"
	"berth/llmserver"
)

var (
	errNoResponse     = errors.New("response not found")
	errResponseAstray = errors.New("No replica that answers holds this response, but not all of them answer; try again later.")
)

// storedResponse tells the path of a stored response, and its id.
func storedResponse(p string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(p, "/v1"), "/responses/")
	id, _, _ = strings.Cut(rest, "/")
	return id, ok && saneResponseID(id)
}

// response serves a request for a stored response: GET, DELETE, its items, or to cancel it. It goes, without a slot, to
// the replica that holds the response. Its path names no model.
func (s *Server) response(c *gin.Context) {
	leaveUnread(c)
	x := stateOf(c).newProxyRequest(s, c, telemetry.PhaseConnect)
	var err error
	if x.allowed, err = requestTimeout(c.Request.Header); err == nil {
		err = x.reach()
	}
	if err != nil {
		x.fail(err)
	}
}

// reach finds the replica that holds the response, and has it answer.
func (x *proxyRequest) reach() error {
	c := x.c
	id, ok := storedResponse(c.Request.URL.Path)
	if !ok {
		return errUnknownPath
	}
	m, holder, err := x.holder(id, keyOf(c).among(x.registry.table.Load().models))
	switch {
	case err != nil:
		return err
	case holder == nil:
		return fmt.Errorf("%w: %s", errNoResponse, id)
	}
	x.model = m
	x.record.Model, x.record.Policy, x.record.Metrics = m.config.ID, m.config.Router.Class, m.metrics
	return x.call(holder)
}

// call passes a request without body and slot on to one replica. One that met a closing connection is sent once more: it
// changes nothing more than the first would have.
func (x *proxyRequest) call(replica *llmserver.Replica) error {
	ctx, stop := x.within(x.c.Request.Context())
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
	if err != nil {
		x.recordUpstreamError(err)
		return err
	}
	defer resp.Body.Close()
	x.record.Phase = telemetry.PhaseStreaming
	resp.Header.Del(requestIDHeader)
	relay := x.relayFor(x.c.Request.URL.Path, 0)
	if x.record.Response, err = relay.Copy(x.c.Request.Context(), x.c.Writer, resp, nil); err != nil {
		x.recordUpstreamError(err)
		if x.record.Response.Started {
			x.abort(err)
		}
	}
	return err
}

// bind has a request that goes on with a stored response served by the replica that holds it: there it waits, and nowhere
// else. Where nobody holds it, whichever engine gets the request says so in its own words.
func (x *proxyRequest) bind(id string) error {
	if !saneResponseID(id) || len(x.model.replicas) == 1 {
		return nil
	}
	_, holder, err := x.holder(id, []*model{x.model})
	x.payload.PinnedTo = holder
	return err
}
