package routers

import (
	"context"
	"net/http"
	"sync"

	"berth/llmserver"
)

// Reply is one replica's answer to a broadcast: a response, whose body the
// caller closes, or an error.
type Reply struct {
	Replica  *llmserver.Replica
	Response *http.Response
	Err      error
}

// Broadcast sends one request to every replica, at the same time and without slots, and returns all
// replies in the order of the members once each head is there. It is for calls that manage an
// engine. request makes a request of its own for each; it must not have a GetBody.
func (r *Router) Broadcast(ctx context.Context, request func(ctx context.Context) *http.Request) []Reply {
	members := r.Members()
	replies := make([]Reply, len(members))
	var all sync.WaitGroup
	for i, m := range members {
		all.Go(func() {
			resp, err := m.Call(request(ctx))
			replies[i] = Reply{m, resp, err}
		})
	}
	all.Wait()
	return replies
}
