package agent

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/llmserver"
)

// BenchmarkReserve measures a reservation over loopback, client and agent together.
func BenchmarkReserve(b *testing.B) {
	s := newTestAgent(b, 1, nil)
	c, err := Dial(llmserver.Endpoint{URL: s.url})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportAllocs()
	var took []time.Duration
	for b.Loop() {
		token, began := uuid.New(), time.Now()
		if _, err := c.Reserve(b.Context(), token, 0); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
		s.agent.table.Release(token)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
}

// BenchmarkReserveAtTheIngress measures the ingress's part of a reservation: the agent is a few
// bytes on a socket.
func BenchmarkReserveAtTheIngress(b *testing.B) {
	const body = `{"accepted":true,"num_ongoing_requests":3,"max_ongoing_requests":64,"draining":false,` +
		`"instance":"0b42a62c-9a9b-4cd6-a2a8-2f0a2a1f8f2e","seq":812,"num_own_requests":1}`
	answer := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for request := make([]byte, 4<<10); ; {
			if _, err := conn.Read(request); err != nil { // a call is one write
				return
			}
			conn.Write(answer)
		}
	}()
	c, err := Dial(llmserver.Endpoint{URL: "http://" + listener.Addr().String()})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Reserve(b.Context(), uuid.New(), 0); err != nil {
			b.Fatal(err)
		}
	}
}
