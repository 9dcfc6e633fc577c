package http1

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The benchmarks' replica is a process of its own, so that the CPU time of this one is the client's alone.
const replicaEnv = "HTTP1_TEST_REPLICA"

// serveReplica answers POST /N with N events in chunks of their own, 2 ms apart, a single one with its
// length, and /-1 with one event and then silence.
func serveReplica() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	go func() {
		io.Copy(io.Discard, os.Stdin) // until the benchmark ends
		os.Exit(0)
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go serveEvents(c)
	}
}

func serveEvents(c net.Conn) {
	defer c.Close()
	event := "data: " + strings.Repeat("x", 180) + "\n\n"
	for r := bufio.NewReader(c); ; {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		io.Copy(io.Discard, req.Body)
		n, _ := strconv.Atoi(req.URL.Path[1:])
		if n == 1 {
			io.WriteString(c, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ndate: Fri, 20 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: 188\r\n\r\n"+event)
			continue
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
		if n < 0 {
			fmt.Fprintf(c, "%x\r\n%s\r\n", len(event), event)
			discardUntilClosed(c)
		}
		for range n {
			time.Sleep(2 * time.Millisecond)
			fmt.Fprintf(c, "%x\r\n%s\r\n", len(event), event)
		}
		io.WriteString(c, "0\r\n\r\n")
	}
}

func startReplica(b *testing.B) (base string) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), replicaEnv+"=1")
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return "http://" + strings.TrimSpace(address)
}

// A sender sends a request to the benchmarks' server.
type sender func(*http.Request) (*http.Response, error)

// eachSender runs a benchmark over net/http's transport and over a Client.
func eachSender(b *testing.B, run func(b *testing.B, send sender)) {
	base := startReplica(b)
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: idleTimeout, WriteBufferSize: 32 << 10}
	defer transport.CloseIdleConnections()
	viaTransport := func(req *http.Request) (*http.Response, error) {
		req.URL.Scheme, req.URL.Host = "http", strings.TrimPrefix(base, "http://")
		return transport.RoundTrip(req)
	}
	b.Run("transport", func(b *testing.B) { run(b, viaTransport) })
	b.Run("http1", func(b *testing.B) { run(b, newTestClient(b, base).Do) })
}

// inParallel does n units of work in 64 goroutines, and reports the CPU time of each.
func inParallel(b *testing.B, n int, unit string, work func()) {
	b.ReportAllocs()
	before := cpuTime()
	b.ResetTimer()
	var done atomic.Int64
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for done.Add(1) <= int64(n) {
				work()
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/"+unit)
}

func roundTripOnce(b *testing.B, send sender, path, body string) {
	resp, err := send(newRequest(b.Context(), http.MethodPost, path, body))
	if err != nil {
		b.Error(err)
		return
	}
	buf := make([]byte, 4096)
	for err == nil {
		_, err = resp.Body.Read(buf)
	}
	if resp.Body.Close(); err != io.EOF {
		b.Error(err)
	}
}

func BenchmarkSmallRequests(b *testing.B) {
	eachSender(b, func(b *testing.B, send sender) {
		inParallel(b, b.N, "req", func() { roundTripOnce(b, send, "/1", strings.Repeat("x", 300)) })
	})
}

func BenchmarkLargePrompts(b *testing.B) {
	prompt := strings.Repeat("x", 256<<10)
	eachSender(b, func(b *testing.B, send sender) {
		inParallel(b, b.N, "req", func() { roundTripOnce(b, send, "/1", prompt) })
	})
}

// An operation is an event, of streams of 500 each.
func BenchmarkEvents(b *testing.B) {
	eachSender(b, func(b *testing.B, send sender) {
		const events = 500
		inParallel(b, (b.N+events-1)/events, "event", func() { roundTripOnce(b, send, fmt.Sprintf("/%d", min(events, max(2, b.N))), "{}") })
	})
}

// What a stream holds here while it is silent, without kernel memory and without the reader's own goroutine and buffer.
func BenchmarkMemoryOfASilentStream(b *testing.B) {
	eachSender(b, func(b *testing.B, send sender) {
		const streams = 500
		inUse := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc + m.StackInuse
		}
		buf := make([]byte, 4096)
		for b.Loop() {
			before := inUse()
			var bodies []io.ReadCloser
			for range streams {
				resp, err := send(newRequest(b.Context(), http.MethodPost, "/-1", "{}"))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := resp.Body.Read(buf); err != nil {
					b.Fatal(err)
				}
				bodies = append(bodies, resp.Body)
			}
			b.ReportMetric(float64(inUse()-before)/streams, "B/stream")
			for _, body := range bodies {
				body.Close()
			}
		}
	})
}
