package streaming

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// relayHandler returns a handler that relays the response of upstream, as an ingress does, and the
// errors of Copy.
func relayHandler(timeout time.Duration, upstream func(*http.Request) *http.Response) (http.HandlerFunc, <-chan error) {
	ended := make(chan error, 1)
	relay := Relay{WriteTimeout: timeout}
	return func(w http.ResponseWriter, req *http.Request) {
		resp := upstream(req)
		defer resp.Body.Close()
		res, err := relay.Copy(req.Context(), w, resp, nil)
		ended <- err
		if err != nil && res.Started {
			panic(http.ErrAbortHandler)
		}
	}, ended
}

func get(t *testing.T, client *http.Client, method string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://berth/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func TestRelayTruncatedResponseNeverLooksComplete(t *testing.T) {
	overHTTP1AndH2(t, func(t *testing.T, h2 bool) {
		long := strings.Repeat("x", largeBuffer)
		known := response("application/json", &script{pieces: []string{long, "x"}, end: io.ErrUnexpectedEOF})
		known.ContentLength = largeBuffer + 10
		known.Header.Set("Content-Length", "65546")
		for want, upstream := range map[string]*http.Response{
			chunk + brokenEvent: events(&script{pieces: []string{chunk, chunk[:9]}, end: errReset}),
			"ab":                response("text/plain", &script{pieces: []string{"a", "b"}, end: errReset}),
			long:                known,
		} {
			handler, ended := relayHandler(time.Minute, func(*http.Request) *http.Response { return upstream })
			client, _ := serve(t, h2, handler)
			resp := get(t, client, "GET")
			got, err := io.ReadAll(resp.Body)
			if err == nil || !strings.HasPrefix(want, string(got)) {
				t.Errorf("the client read %.300q and then %v", got, err)
			}
			if resp.ContentLength < 0 && string(got) != want {
				t.Errorf("the client read %q before the end, want %q", got, want)
			}
			if err := <-ended; !errors.Is(err, ErrUpstreamBroken) {
				t.Errorf("Copy returned %v", err)
			}
		}
	})
}

func TestRelayMissingTrailerEndsResponse(t *testing.T) {
	overHTTP1AndH2(t, func(t *testing.T, h2 bool) {
		synctest.Test(t, func(t *testing.T) {
			handler, ended := relayHandler(time.Minute, func(*http.Request) *http.Response {
				resp := events(&script{pieces: []string{chunk}})
				resp.Trailer = http.Header{"X-Sum": nil}
				return resp
			})
			client, _ := serve(t, h2, handler)
			if got, err := io.ReadAll(get(t, client, "GET").Body); err != nil || string(got) != chunk {
				t.Errorf("the client read %q, %v", got, err)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	})
}

func TestRelayWriteTimeoutEndsStalledClient(t *testing.T) {
	overHTTP1AndH2(t, func(t *testing.T, h2 bool) {
		synctest.Test(t, func(t *testing.T) {
			handler, ended := relayHandler(time.Minute, func(*http.Request) *http.Response {
				return events(&endlessBody{1 << 20})
			})
			client, _ := serve(t, h2, handler)
			began := time.Now()
			get(t, client, "GET") // the body is never read
			err := <-ended
			if stalled := time.Since(began); !errors.Is(err, ErrClientGone) || stalled < time.Minute || stalled > 75*time.Second {
				t.Errorf("after %v: %v", stalled, err)
			}
			if err != nil && !strings.Contains(err.Error(), "read nothing for 1m0s") {
				t.Errorf("%v does not say why", err)
			}
		})
	})
}

func TestRelayWriteTimeoutIgnoresSilentUpstream(t *testing.T) {
	overHTTP1AndH2(t, func(t *testing.T, h2 bool) {
		synctest.Test(t, func(t *testing.T) {
			body := &script{pieces: []string{chunk, chunk, chunk}}
			body.before = func() { time.Sleep(time.Hour) }
			handler, ended := relayHandler(time.Second, func(*http.Request) *http.Response { return events(body) })
			client, _ := serve(t, h2, handler)
			got, err := io.ReadAll(get(t, client, "GET").Body)
			if err != nil || string(got) != chunk+chunk+chunk {
				t.Errorf("the client read %q, %v", got, err)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	})
}

func TestRelayDisconnectEndsUpstreamRead(t *testing.T) {
	overHTTP1AndH2(t, func(t *testing.T, h2 bool) {
		synctest.Test(t, func(t *testing.T) {
			handler, ended := relayHandler(time.Minute, func(req *http.Request) *http.Response {
				body := &script{pieces: []string{chunk}, end: errReset}
				body.before = func() {
					if len(body.pieces) == 0 {
						<-req.Context().Done() // as the body of a request with this context would
					}
				}
				return events(body)
			})
			client, _ := serve(t, h2, handler)
			resp := get(t, client, "GET")
			synctest.Wait()
			resp.Body.Close()
			if err := <-ended; !errors.Is(err, ErrClientGone) {
				t.Errorf("Copy returned %v", err)
			}
		})
	})
}

func TestRelayWriteTimeoutCoversLastBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler, ended := relayHandler(time.Minute, func(*http.Request) *http.Response {
			resp := response("application/json", &script{pieces: []string{"{}"}})
			resp.ContentLength = 2
			return resp
		})
		_, n := serve(t, false, handler)
		conn, err := n.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: berth\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil { // the response is in the server's buffer
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if got, _ := io.ReadAll(conn); len(got) > 0 {
			t.Errorf("the server still tried to write %q", got)
		}
	})
}

func TestRelayWriteDeadlineEndsWithRequest(t *testing.T) {
	overHTTP1AndH2(t, func(t *testing.T, h2 bool) {
		synctest.Test(t, func(t *testing.T) {
			handler, ended := relayHandler(time.Second, func(*http.Request) *http.Response {
				return events(&script{pieces: []string{chunk}})
			})
			client, _ := serve(t, h2, handler)
			for range 3 {
				got, err := io.ReadAll(get(t, client, "GET").Body)
				if err != nil || string(got) != chunk || <-ended != nil {
					t.Errorf("the client read %q, %v", got, err)
				}
				time.Sleep(10 * time.Second)
			}
		})
	})
}

func TestRelayPassesStatusHeaderAndTrailer(t *testing.T) {
	overHTTP1AndH2(t, func(t *testing.T, h2 bool) {
		for _, body := range []string{"", "a\n\n", strings.Repeat("a", smallBuffer)} {
			upstream := &http.Response{
				StatusCode:    http.StatusTeapot,
				ContentLength: -1,
				Body:          &script{pieces: []string{body}},
				Header: http.Header{
					"Date": {"Mon, 02 Jan 2006 15:04:05 GMT"}, "X-Ratelimit-Limit": {"1", "2"}, "X-Slot-Seq": {"1"}, "Connection": {"x-gone"}, "X-Gone": {"1"},
				},
				Trailer: http.Header{"X-Sum": {"7", "8"}, "X-Slot-Seq": {"2"},
					"Content-Length": {"1"}, "Transfer-Encoding": {"chunked"}, "Host": {"elsewhere"}, "Authorization": {"Bearer"}, "Content-Type": {"a/b"}},
			}
			handler, _ := relayHandler(time.Minute, func(*http.Request) *http.Response { return upstream })
			client, _ := serve(t, h2, handler)
			resp := get(t, client, "GET")
			got, err := io.ReadAll(resp.Body)
			if err != nil || string(got) != body || resp.StatusCode != http.StatusTeapot {
				t.Errorf("status %d, body %q, %v", resp.StatusCode, got, err)
			}
			if body == "" {
				resp.Header.Del("Content-Length") // h2 may say 0 and send a trailer all the same
			}
			want := http.Header{"Date": {"Mon, 02 Jan 2006 15:04:05 GMT"}, "X-Ratelimit-Limit": {"1", "2"}}
			if !maps.EqualFunc(resp.Header, want, slices.Equal) {
				t.Errorf("header %v, want %v", resp.Header, want)
			}
			if want := (http.Header{"X-Sum": {"7", "8"}}); !maps.EqualFunc(resp.Trailer, want, slices.Equal) {
				t.Errorf("trailer %v, want %v", resp.Trailer, want)
			}
		}
	})
}

func TestRelayResponsesWithoutBody(t *testing.T) {
	overHTTP1AndH2(t, func(t *testing.T, h2 bool) {
		for _, test := range []struct {
			method string
			status int
			length string
		}{{"HEAD", 200, "12"}, {"HEAD", 200, ""}, {"GET", 204, ""}, {"GET", 304, ""}} {
			upstream := response("text/event-stream", http.NoBody)
			upstream.StatusCode = test.status
			if test.length != "" {
				upstream.Header.Set("Content-Length", test.length)
				upstream.ContentLength = 12
			}
			handler, ended := relayHandler(time.Minute, func(*http.Request) *http.Response { return upstream })
			client, _ := serve(t, h2, handler)
			resp := get(t, client, test.method)
			body, err := io.ReadAll(resp.Body)
			if err != nil || len(body) > 0 || resp.StatusCode != test.status || resp.Header.Get("Content-Length") != test.length {
				t.Errorf("%v: status %d, header %v, body %q, %v", test, resp.StatusCode, resp.Header, body, err)
			}
			if err := <-ended; err != nil {
				t.Errorf("%v: %v", test, err)
			}
		}
	})
}

func TestHeaderOfRequestGetsNoUserAgent(t *testing.T) {
	overHTTP1AndH2(t, func(t *testing.T, h2 bool) {
		client, _ := serve(t, h2, func(w http.ResponseWriter, req *http.Request) {
			if agents, ok := req.Header["User-Agent"]; ok {
				t.Errorf("the upstream sees %q", agents)
			}
		})
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://engine/", nil)
		if err != nil {
			t.Fatal(err)
		}
		CopyRequestHeader(req.Header, http.Header{})
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	})
}
