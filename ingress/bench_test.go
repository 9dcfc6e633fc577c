package ingress

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/config"
	"berth/llmserver"
	"berth/routers"
)

// BenchmarkStream measures an event stream through the whole server, with one write per event.
// Client and replica run in the same process and cost far more than the server does.
func BenchmarkStream(b *testing.B) {
	s := serveFor(b, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for range b.N {
			io.WriteString(w, textChunk)
			w.(http.Flusher).Flush()
		}
		io.WriteString(w, doneChunk)
	})
	measure(b, func() {
		if n := ask(b, s); n != int64(b.N*len(textChunk)+len(doneChunk)) {
			b.Fatalf("%d bytes of %d events", n, b.N)
		}
	})
}

// BenchmarkRequest measures a request with a short response, which includes its usage.
func BenchmarkRequest(b *testing.B) {
	response := []byte(`{"choices":[{"message":{"content":"Hi"}}],"usage":{"prompt_tokens":4,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2}}}`)
	s := serveFor(b, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Write(response)
	})
	ask(b, s)
	measure(b, func() {
		for range b.N {
			ask(b, s)
		}
	})
}

// serveFor starts a server with one model on one replica.
func serveFor(b *testing.B, h http.HandlerFunc) *Server {
	replica := httptest.NewServer(h)
	b.Cleanup(replica.Close)
	c := configured(modelOn("m", replica.URL))
	c.Admin = config.Admin{}
	s, err := New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	s.public.serve(make(chan error, 1))
	return s
}

// ask sends a request and returns the length of the response.
func ask(b *testing.B, s *Server) int64 {
	resp, err := http.Post("http://"+s.Address()+"/v1/chat/completions", "application/json", strings.NewReader(chat("m")))
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

func measure(b *testing.B, work func()) {
	b.ReportAllocs()
	b.ResetTimer()
	start := cpu(b)
	work()
	b.ReportMetric(float64(cpu(b)-start)/float64(b.N), "cpu-ns/op")
}

// BenchmarkPlaceAPrompt measures everything between a body and the choice of its replica: scan,
// hash, match and rank a prompt of 100 kB, of which 64 replicas hold prefixes of different lengths.
func BenchmarkPlaceAPrompt(b *testing.B) {
	build, err := routers.Lookup("PrefixCacheAffinityRouter", nil)
	if err != nil {
		b.Fatal(err)
	}
	var replicas []*llmserver.Replica
	for i := range 64 {
		replicas = append(replicas, replicasCalled(fmt.Sprint(i))...)
	}
	policy := build(replicas, nil)
	learner, size := policy.(routers.Learner), policy.(routers.BlockSizer).BlockSize()
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("a long prompt. ", 100_000/15) + `"}]}`)
	rank := func() []uint64 {
		blocks := hashPromptOf(b, body, "m", size)
		for range policy.Rank(&routers.Payload{Blocks: blocks}) {
			break
		}
		return blocks
	}
	for i, replica := range replicas {
		blocks := rank()
		_, settled := learner.Reserved(&routers.Payload{Blocks: blocks[:len(blocks)*(i+1)/64]}, replica)
		settled(routers.Outcome{Served: true})
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	start := cpu(b)
	for b.Loop() {
		rank()
	}
	b.ReportMetric(float64(cpu(b)-start)/float64(b.N), "cpu-ns/op")
}

// cpu returns the processor time that this process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
