package ingress

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

// askTimeout bounds the search for the replica that holds a response.
const askTimeout = 5 * time.Second

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

// response serves a request for a stored response: GET, DELETE, its items, or to cancel it. It goes, without a slot, to the replica
// that holds the response. Its path names no model.
func (s *Server) response(c *gin.Context) {
	leaveUnread(c)
	x := &exchange{Server: s, c: c, began: time.Now(), phase: phaseConnect}
	if s.access.on.Load() {
		c.Set(keyExchange, x)
	}
	id, ok := storedResponse(c.Request.URL.Path)
	if !ok {
		x.fail(errUnknownPath)
		return
	}
	t := s.registry.table.Load()
	var holder *llmserver.Replica
	var err error
	if x.allowed, err = requestTimeout(c.Request.Header); err == nil {
		holder, err = x.holder(id, keyOf(c).among(t.models))
	}
	if err == nil && holder == nil {
		err = fmt.Errorf("%w: %s", errNoResponse, id)
	}
	if err == nil {
		x.model = t.find(holder.Endpoint().Model)
		c.Set(keyModel, x.model.config.ID)
		err = x.call(holder)
	}
	if err != nil {
		x.fail(err)
	}
}

// call passes a request without body and slot on to one replica. One that met a closing connection is sent once more: it
// changes nothing more than the first would have.
func (x *exchange) call(replica *llmserver.Replica) error {
	ctx, stop := x.within(x.c.Request.Context())
	defer stop()
	send := func() (*http.Response, error) {
		req := outgoing(ctx, x.c.Request)
		req.Header.Del("Content-Type")
		x.phase, x.dispatched = phaseFirstByte, time.Now()
		return replica.Call(req)
	}
	x.replica, x.rank, x.attempts = replica.ID(), 1, 1
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
	if x.result, err = x.relay.Copy(x.c.Request.Context(), x.c.Writer, resp, nil); err != nil {
		x.upstreamFailed(err)
		if x.result.Started {
			x.abort(err)
		}
	}
	return err
}

// bind has a request that goes on with a stored response served by the replica that holds it: there it waits, and nowhere else. Where
// nobody holds it, whichever engine gets the request says so in its own words.
func (x *exchange) bind(id string) error {
	if !saneResponseID(id) || len(x.model.replicas) == 1 {
		return nil
	}
	holder, err := x.holder(id, []*model{x.model})
	x.payload.Only = holder
	return err
}

// holder finds the replica of these models that holds a response, by what was learned or else by asking all of them. It is nil
// if none does, and errResponseAstray if that is not certain.
func (x *exchange) holder(id string, models []*model) (*llmserver.Replica, error) {
	if known := x.holders.find(id); known != nil {
		for _, m := range models {
			for _, member := range m.router.Members() {
				if member == known {
					return known, nil
				}
			}
		}
	}
	var holder *llmserver.Replica
	var astray error
	for _, reply := range x.askAll(id, models) {
		switch {
		case reply.Err != nil || reply.Response.StatusCode >= 500:
			astray = errResponseAstray
		case reply.Response.StatusCode/100 == 2:
			holder = reply.Replica
		}
	}
	switch ctx := x.c.Request.Context(); {
	case holder != nil:
		x.holders.put(id, holder)
		return holder, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w: %w", streaming.ErrClientGone, context.Cause(ctx))
	default:
		return nil, astray
	}
}

// askAll asks every replica of these models for a response. The bodies of the replies are closed.
func (x *exchange) askAll(id string, models []*model) (all []routers.Reply) {
	ctx, stop := context.WithTimeout(x.c.Request.Context(), askTimeout)
	defer stop()
	ask := func(ctx context.Context) *http.Request {
		req := &http.Request{
			Method: http.MethodGet,
			URL:    &url.URL{Path: "/v1/responses/" + id},
			Header: make(http.Header),
			Body:   http.NoBody,
		}
		streaming.CopyRequestHeader(req.Header, x.c.Request.Header)
		req.Header.Del("Content-Type")
		return req.WithContext(ctx)
	}
	replies := make([][]routers.Reply, len(models))
	var asked sync.WaitGroup
	for i, m := range models {
		asked.Go(func() { replies[i] = m.router.Broadcast(ctx, ask) })
	}
	asked.Wait()
	for _, of := range replies {
		for _, reply := range of {
			if reply.Err == nil {
				reply.Response.Body.Close()
			}
			all = append(all, reply)
		}
	}
	return all
}
