package routers

import (
	"context"
	"net/http"
	"sync"

	"berth/llmserver"
)

// Reply is the result of a broadcast at one replica: a response, whose body the caller closes, or an
// error.
type Reply struct {
	Replica  *llmserver.Replica
	Response *http.Response
	Err      error
}

// Broadcast sends a request to every replica, concurrently and without slots, and returns all replies
// in the order of Members once each response header was received. It is for calls that manage engines.
// newRequest returns a request of its own for each; it must not have a GetBody.
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
