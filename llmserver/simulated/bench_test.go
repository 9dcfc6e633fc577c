package simulated

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// One operation is one chunk from the batch through a socket to a client that discards it. The
// machine is saturated and the client reads many chunks at once, so the result is not the cost of a
// lone chunk.
func BenchmarkSimulatedChunkAmongStreams(b *testing.B) {
	for _, streams := range []int{1, 300} {
		b.Run(fmt.Sprint(streams), func(b *testing.B) {
			s, err := Listen("127.0.0.1:0", Config{DecodeStep: 1, DecodeStepPerRequest: 1, KVCacheTokens: 1 << 40, MaxRunning: streams})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			transport := &http.Transport{MaxIdleConnsPerHost: streams}
			defer transport.CloseIdleConnections()
			c := &http.Client{Transport: transport}
			tokens := b.N/streams + 1
			b.ReportAllocs()
			b.ResetTimer()
			var clients sync.WaitGroup
			for i := range streams {
				clients.Go(func() {
					resp, err := c.Post(s.URL()+"/v1/completions", "application/json",
						strings.NewReader(fmt.Sprintf(`{"prompt":"%d","max_tokens":%d,"stream":true}`, i, tokens)))
					if err != nil {
						b.Error(err)
						return
					}
					defer resp.Body.Close()
					var events lineCounter
					if _, err := io.Copy(&events, resp.Body); err != nil || resp.StatusCode != http.StatusOK || int(events) != 2*(tokens+1) {
						b.Errorf("status %d, %d lines of %d, %v", resp.StatusCode, events, 2*(tokens+1), err)
					}
				})
			}
			clients.Wait()
		})
	}
}

// A lineCounter counts line ends: two for each event.
type lineCounter int

func (c *lineCounter) Write(p []byte) (int, error) {
	*c += lineCounter(bytes.Count(p, []byte("\n")))
	return len(p), nil
}
