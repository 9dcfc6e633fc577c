package routers_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"berth/llmserver"
	"berth/routers"
)

// newPool returns a pool of one server for each ID, with one slot each, and a function that ends
// it.
func newPool(ids ...string) (replicas []*llmserver.Replica, closePool func()) {
	pool := &llmserver.Pool{Dial: func(e llmserver.Endpoint) (llmserver.Backend, error) { return llmserver.DialHTTP(e) }}
	var servers []*httptest.Server
	var endpoints []llmserver.Endpoint
	for _, id := range ids {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello from "+id) }))
		servers = append(servers, server)
		endpoints = append(endpoints, llmserver.Endpoint{Model: "m", ID: id, URL: server.URL, Limit: 1, ConnectTimeout: time.Second})
	}
	replicas, retire, err := pool.Set(endpoints)
	if err != nil {
		panic(err)
	}
	retire()
	return replicas, func() {
		pool.Close()
		for _, s := range servers {
			s.Close()
		}
	}
}

func Example() {
	replicas, closePool := newPool("a", "b")
	defer closePool()
	build, err := routers.Lookup("PowerOfTwoChoicesRouter", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	router := routers.New(replicas, build, routers.Limits{MaxQueued: 100, QueueTimeout: time.Second}, routers.Hooks{})
	defer router.Close()

	send := func() error {
		sel, err := router.Choose(context.Background(), &routers.Payload{RequestID: "request"})
		if err != nil {
			return err
		}
		defer sel.Release() // whatever happens below, the slot is free again
		req, err := http.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader("{}"))
		if err != nil {
			return err
		}
		req.GetBody = nil // a slot is for one attempt: the transport must not repeat it
		resp, err := sel.Dispatch(req)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(resp.Body)
		fmt.Println(resp.StatusCode, string(text) == "hello from "+sel.Replica().ID(), sel.Replica().Load())
		return err
	}
	if err := send(); err != nil {
		fmt.Println(err)
	}
	fmt.Println(replicas[0].Load(), replicas[1].Load())
	// Output:
	// 200 true 1
	// 0 0
}

// A full fleet makes requests wait. A released slot goes to the next waiting request without being
// free in between.
func ExampleRouter_Choose() {
	replicas, closePool := newPool("a", "b")
	defer closePool()
	router := routers.New(replicas, routers.RoundRobin(1), routers.Limits{MaxQueued: 1, QueueTimeout: time.Minute}, routers.Hooks{})
	defer router.Close()

	ctx := context.Background()
	first, _ := router.Choose(ctx, new(routers.Payload))
	second, _ := router.Choose(ctx, new(routers.Payload))
	fmt.Println(first.Replica().ID(), second.Replica().ID())

	third := make(chan *routers.Selection)
	go func() {
		sel, _ := router.Choose(ctx, new(routers.Payload))
		third <- sel
	}()
	for router.QueueLength() == 0 {
		time.Sleep(time.Millisecond)
	}
	_, err := router.Choose(ctx, new(routers.Payload))
	fmt.Println(err)

	second.Release()
	sel := <-third
	fmt.Println(sel.Replica().ID(), sel.Replica().Load())
	sel.Release()
	first.Release()
	slots, skips := router.Handoffs()
	fmt.Println(slots, skips)
	// Output:
	// a b
	// every replica is busy and the queue is full
	// b 1
	// 1 0
}

// cheapestFirst is a policy of one's own: the replicas of a cheap zone as one tier, then the rest.
// It keeps its zones when the membership changes, since they are given to the builder.
type cheapestFirst struct {
	cheap, others []*llmserver.Replica
}

// CheapestFirst returns the builder of the policy.
func CheapestFirst(isCheap func(r *llmserver.Replica) bool) routers.Builder {
	return func(members []*llmserver.Replica, _ routers.Policy) routers.Policy {
		p := new(cheapestFirst)
		for _, r := range members {
			if isCheap(r) {
				p.cheap = append(p.cheap, r)
			} else {
				p.others = append(p.others, r)
			}
		}
		return p
	}
}

// Rank yields two tiers of available replicas. Load decides within each of them.
func (p *cheapestFirst) Rank(*routers.Payload) iter.Seq[routers.Tier] {
	return func(yield func(routers.Tier) bool) {
		for _, replicas := range [][]*llmserver.Replica{p.cheap, p.others} {
			var tier routers.Tier
			for _, r := range replicas {
				if r.Available() {
					tier.Replicas = append(tier.Replicas, r)
				}
			}
			if len(tier.Replicas) > 0 && !yield(tier) {
				return
			}
		}
	}
}

func ExamplePolicy() {
	replicas, closePool := newPool("on-demand-1", "spot-1", "spot-2")
	defer closePool()
	build := CheapestFirst(func(r *llmserver.Replica) bool { return strings.HasPrefix(r.ID(), "spot-") })
	router := routers.New(replicas, build, routers.Limits{QueueTimeout: time.Second}, routers.Hooks{})
	defer router.Close()

	for range 3 {
		sel, err := router.Choose(context.Background(), new(routers.Payload))
		if err != nil {
			fmt.Println(err)
			return
		}
		defer sel.Release()
		fmt.Println(sel.Replica().ID(), "rank", sel.Rank())
	}
	// Output:
	// spot-1 rank 1
	// spot-2 rank 1
	// on-demand-1 rank 2
}
