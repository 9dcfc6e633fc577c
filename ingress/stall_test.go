package ingress

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth/ingress/telemetry"
)

func TestTimeoutDisconnectsClientThatReadsNothing(t *testing.T) {
	for _, version := range []string{"1.1", "1.0"} { // our own server, and net/http's
		t.Run(version, func(t *testing.T) {
			left := make(chan struct{}, 1)
			url := upstream(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for event := "data: {}\n\n" + strings.Repeat(": more\n\n", 4<<10); r.Context().Err() == nil; {
					if _, err := io.WriteString(w, event); err != nil {
						break
					}
				}
				left <- struct{}{}
			})
			c := configured(modelOn("m", url))
			c.HTTP.SendTimeout = time.Hour
			f := serveConfig(t, c)
			next := *c
			next.HTTP.SendTimeout = 250 * time.Millisecond // by a reload
			if err := f.Apply(&next); err != nil {
				t.Fatal(err)
			}
			body := streamed("m")
			f.raw(fmt.Sprintf("POST /v1/chat/completions HTTP/%s\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", version, len(body), body))
			receive(t, left)
			f.wantAbort("m", telemetry.PhaseStreaming)
			f.eventually("the log says why", func() bool {
				log := f.log.take()
				return strings.Contains(log, "read nothing of its response") && strings.Contains(log, "send_timeout_s=0.25")
			})
		})
	}
}

func TestTimeoutReplicaStopsReading(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn, 10)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- conn // and never read from it
		}
	}()
	t.Cleanup(func() {
		l.Close()
		for conn := range accepted {
			conn.Close()
		}
	})
	m := modelOn("m", "http://"+l.Addr().String())
	m.SendTimeout = 250 * time.Millisecond
	c := configured(m)
	c.HTTP.MaxBodyBytes, c.HTTP.MaxBufferedBytes = 64<<20, 128<<20
	f := serveConfig(t, c)
	r := f.post("/v1/chat/completions", strings.Replace(chat("m"), "{", `{"user":"`+strings.Repeat("x", 32<<20)+`",`, 1))
	wantError(t, r, http.StatusGatewayTimeout, "upstream_send_timeout", "")
	f.wantLines(`msg="response failed" replica=a model=m .* phase=first_byte .*replica stopped reading the request`)
	f.idle()
}
