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

// BenchmarkStream is the whole way of an event stream through berth, each event in a write of its own. Client and replica
// are in the same process, and cost far more than what berth does beside passing bytes on.
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

// BenchmarkRequest is the whole way of a short answer that tells its usage.
func BenchmarkRequest(b *testing.B) {
	answer := []byte(`{"choices":[{"message":{"content":"Hi"}}],"usage":{"prompt_tokens":4,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2}}}`)
	s := serveFor(b, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Write(answer)
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

// ask sends a request and returns the length of its answer.
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
	began := cpu(b)
	work()
	b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/op")
}

// BenchmarkPlaceAPrompt is all that is done between a body and the choice of its replica: scan, hash, match and rank a prompt
// of 100 kB, the beginnings of which are known to 64 replicas in different lengths.
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
		blocks, _ := hashed(b, body, "m", "", size)
		for range policy.Rank(&routers.Payload{Blocks: blocks}) {
			break
		}
		return blocks
	}
	for i, replica := range replicas {
		blocks := rank()
		_, settled := learner.Reserved(&routers.Payload{Blocks: blocks[:len(blocks)*(i+1)/64]}, replica)
		settled(routers.Outcome{Answered: true})
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	began := cpu(b)
	for b.Loop() {
		rank()
	}
	b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/op")
}

// cpu is the time that this process has had a processor.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
