package routers

import (
	"context"
	"net/http"
	"sync"

	"berth/llmserver"
)

// Reply is the result of a broadcast at one replica: an error, or a response with a body for the
// caller to close.
type Reply struct {
	Replica  *llmserver.Replica
	Response *http.Response
	Err      error
}

// Broadcast sends a request to every replica, concurrently and without slots, and returns all
// replies in the order of Members once each response header was received. Broadcast is for calls
// managing engines. newRequest returns a separate request for each replica, without a GetBody.
// Broadcast blocks until the slowest replica has responded or ctx ends.
func (r *Router) Broadcast(ctx context.Context, newRequest func(ctx context.Context) *http.Request) []Reply {
	members := r.Members()
	replies := make([]Reply, len(members))
	var all sync.WaitGroup
	for i, m := range members {
		all.Go(func() {
			resp, err := m.Call(newRequest(ctx))
			replies[i] = Reply{m, resp, err}
		})
	}
	all.Wait()
	return replies
}
