package routers

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
	"berth/llmserver/agent"
)

// calls is a backend that hears of calls without a slot.
type calls struct {
	*tableBackend
	takes  time.Duration
	err    error
	tokens []llmserver.Token
	paths  []string
}

func (b *calls) Do(req *http.Request, t llmserver.Token) (*http.Response, llmserver.Report, error) {
	b.tokens, b.paths = append(b.tokens, t), append(b.paths, req.URL.Path)
	select {
	case <-time.After(b.takes):
	case <-req.Context().Done():
		return nil, llmserver.Report{}, context.Cause(req.Context())
	}
	if b.err != nil {
		return nil, llmserver.Report{}, b.err
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, llmserver.Report{}, nil
}

// broadcasting is a router over backends that are full.
func newBroadcastRouter(t *testing.T, backends ...*calls) (*Router, []*llmserver.Replica) {
	var members []*llmserver.Replica
	for i, b := range backends {
		b.tableBackend = &tableBackend{table: agent.NewTable(1)}
		fill(t, b.table)
		members = append(members, llmserver.NewReplica(llmserver.Endpoint{ID: string(rune('a' + i)), Limit: 1, CountsSlots: true}, b))
	}
	return New(members, newByText, roomy, Hooks{}), members
}

func sleepCall(ctx context.Context) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "/sleep", nil)
	if err != nil {
		panic(err)
	}
	return req
}

func TestRouterBroadcastReachesAllReplicasWithoutSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		backends := []*calls{{takes: 3 * time.Second}, {takes: time.Second, err: broken}, {takes: 2 * time.Second}}
		r, members := newBroadcastRouter(t, backends...)
		began := time.Now()
		replies := r.Broadcast(t.Context(), sleepCall)
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("it took %v; want as long as the slowest", took)
		}
		for i, reply := range replies {
			if reply.Replica != members[i] || (reply.Response == nil) != (i == 1) || errors.Is(reply.Err, broken) != (i == 1) {
				t.Errorf("reply %d: %+v", i, reply)
			}
			if b := backends[i]; len(b.tokens) != 1 || b.tokens[0] != (llmserver.Token{}) || b.paths[0] != "/sleep" || b.asked.Load() != 0 {
				t.Errorf("replica %d got %v with %v and %d reservations", i, b.paths, b.tokens, b.asked.Load())
			}
			if u := members[i].Usage(); u.Ongoing() != 0 {
				t.Errorf("replica %d: %+v", i, u)
			}
		}
	})
}

func TestRouterBroadcastEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newBroadcastRouter(t, &calls{takes: time.Hour}, &calls{})
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		replies := r.Broadcast(ctx, sleepCall)
		if !errors.Is(replies[0].Err, context.DeadlineExceeded) || replies[1].Err != nil {
			t.Errorf("%v, %v", replies[0].Err, replies[1].Err)
		}
		if none := New(nil, newByText, roomy, Hooks{}).Broadcast(t.Context(), sleepCall); len(none) != 0 {
			t.Errorf("nobody replied %v", none)
		}
	})
}
