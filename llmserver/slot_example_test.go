package llmserver_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"berth/llmserver"
)

// A request reserves a slot, confirms it, starts it and is sent. The deferred Release ends the slot
// on every path.
func ExampleSlot() {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "hello")
	}))
	defer engine.Close()
	endpoint := llmserver.Endpoint{ID: "replica-1", URL: engine.URL, Limit: 1}
	backend, err := llmserver.DialHTTP(endpoint)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer backend.Close()
	replica := llmserver.NewReplica(endpoint, backend)

	send := func(ctx context.Context) error {
		slot, err := replica.TryReserve("request-1", 0)
		if err != nil {
			return err
		}
		defer slot.Release()
		if _, err := replica.TryReserve("request-2", 0); err != nil {
			fmt.Println("second reservation:", err)
		}
		if err := slot.Confirm(ctx, 0); err != nil {
			return err
		}
		if err := slot.Start(); err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", io.NopCloser(strings.NewReader("{}")))
		if err != nil {
			return err
		}
		resp, err := replica.Do(req, slot)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		fmt.Printf("%s, ongoing: %d\n", body, replica.Load())
		return err
	}
	fmt.Println(send(context.Background()), replica.Load())
	// Output:
	// second reservation: all slots are in use
	// hello, ongoing: 1
	// <nil> 0
}
