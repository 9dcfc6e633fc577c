package http1

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

const smallResponse = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

// holdResponses opens n responses at once, each on a connection of its own.
func holdResponses(t *testing.T, c *Client, n int) (bodies []io.ReadCloser) {
	t.Helper()
	for range n {
		resp, err := c.Do(newPost(t.Context(), "/"))
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, resp.Body)
	}
	return bodies
}

// idleConns returns the number of idle connections.
func idleConns(c *Client) int {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	return len(c.pool.idle)
}

func TestConnPoolReusesMostRecentConnection(t *testing.T) {
	base, connections := cannedServer(t, smallResponse)
	c := newTestClient(t, base)
	bodies := holdResponses(t, c, 3)
	for _, i := range []int{2, 0, 1} {
		io.Copy(io.Discard, bodies[i])
	}
	first := slices.Clone(connections())
	holdResponses(t, c, 3)
	if again := connections()[3:]; !slices.Equal(again, []int{first[1], first[0], first[2]}) {
		t.Errorf("connections %v were reused as %v", first, again)
	}
}

func TestClientReusesConnectionOnlyAfterCleanEnd(t *testing.T) {
	for name, c := range map[string]struct {
		response string
		again    bool
	}{
		"a length":             {smallResponse, true},
		"no body":              {"HTTP/1.1 204 No Content\r\n\r\n", true},
		"chunks":               {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", true},
		"chunks and a trailer": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nA: b\r\n\r\n", true},
		"keep-alive":           {"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n", true},
		"HTTP/1.0":             {"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", false},
		"close":                {"HTTP/1.1 200 OK\r\nConnection: a, Close\r\nContent-Length: 0\r\n\r\n", false},
		"a length and chunks":  {"HTTP/1.1 200 OK\r\nContent-Length: 11\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", false},
		"more than a length":   {smallResponse + "HTTP/1.1 200 OK\r\n\r\n", false},
		"more than a length 0": {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nx", false},
		"more than no body":    {"HTTP/1.1 204 No Content\r\nContent-Length: 1\r\n\r\nx", false},
		"no body, announced":   {"HTTP/1.1 204 No Content\r\nContent-Length: 1\r\n\r\n", false},
		"more than chunks":     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nx", false},
	} {
		base, connections := cannedServer(t, c.response)
		client := newTestClient(t, base)
		mustRoundTrip(t, client)
		mustRoundTrip(t, client)
		if seen := connections(); (seen[0] == seen[1]) != c.again {
			t.Errorf("%s: the requests came on the connections %v", name, seen)
		}
	}
}

func TestClientSurplusInSameReadClosesConnection(t *testing.T) {
	for surplus, again := range map[string]bool{"": true, "x": false} {
		header := "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"
		rt, err := receiveScripted(http.MethodPost, &scriptConn{data: []byte(header + "abcd" + surplus), maxRead: len(header)})
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(rt); string(body) != "abcd" || err != nil || rt.reusable != again {
			t.Errorf("with surplus %q: the body is %q, %v; the connection is kept: %v", surplus, body, err, rt.reusable)
		}
	}
}

// The server closes an idle connection, or sends unsolicited data on it.
func TestConnPoolSkipsConnectionsWithPendingData(t *testing.T) {
	for _, what := range []string{"closes", "sends"} {
		t.Run(what, func(t *testing.T) {
			idle, done := make(chan struct{}), make(chan struct{})
			base := rawServer(t, func(n int, c net.Conn) {
				readWholeRequest(bufio.NewReader(c))
				io.WriteString(c, smallResponse)
				if n > 0 {
					return
				}
				<-idle
				if what == "closes" {
					c.Close()
				} else {
					io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\n\r\n")
				}
				close(done)
				discardUntilClosed(c)
			})
			c := newTestClient(t, base)
			mustRoundTrip(t, c)
			close(idle)
			<-done
			if resp, _ := mustRoundTrip(t, c); resp.StatusCode != 200 {
				t.Errorf("the response is %s", resp.Status)
			}
		})
	}
}

func TestConnPoolClosesExpiredConnections(t *testing.T) {
	gone := make(chan int, 3)
	base := rawServer(t, func(n int, c net.Conn) {
		for r := bufio.NewReader(c); readWholeRequest(r); {
			io.WriteString(c, smallResponse)
		}
		gone <- n
	})
	synctest.Test(t, func(t *testing.T) {
		c := newTestClient(t, base)
		bodies := holdResponses(t, c, 2)
		io.Copy(io.Discard, bodies[0])
		time.Sleep(3 * time.Second)
		io.Copy(io.Discard, bodies[1])
		time.Sleep(time.Second - 1)
		if n := idleConns(c); n != 2 {
			t.Fatalf("%d are idle", n)
		}
		time.Sleep(1)
		synctest.Wait()
		if n := idleConns(c); n != 1 {
			t.Fatalf("%d are idle", n)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := idleConns(c); n != 0 {
			t.Fatalf("%d are idle", n)
		}
		mustRoundTrip(t, c) // arms the timer again
		time.Sleep(idleTimeout)
		synctest.Wait()
		if n := idleConns(c); n != 0 {
			t.Fatalf("%d are idle", n)
		}
	})
	for range 3 {
		<-gone
	}
}

// The timer may be late. An expired connection is not used.
func TestConnPoolSkipsExpiredConnections(t *testing.T) {
	base, connections := cannedServer(t, smallResponse)
	c := newTestClient(t, base)
	mustRoundTrip(t, c)
	c.pool.idle[0].idleSince = time.Now().Add(-idleTimeout)
	mustRoundTrip(t, c)
	if seen := connections(); seen[0] == seen[1] {
		t.Error("the connection was reused")
	}
}

func TestConnPoolKeepsAtMostMaxIdle(t *testing.T) {
	p := connPool{}
	t.Cleanup(p.closePool)
	s := &closeCounter{}
	for range maxIdle + 3 {
		p.putConn(newClientConn(s))
	}
	if len(p.idle) != maxIdle || s.closes != 3 {
		t.Errorf("%d are kept, %d were closed", len(p.idle), s.closes)
	}
}

// A closeCounter counts how often it is closed.
type closeCounter struct {
	scriptConn
	closes int
}

func (c *closeCounter) Close() error { c.closes++; return nil }

func TestClientServesRequestsAfterClose(t *testing.T) {
	base, connections := cannedServer(t, smallResponse)
	c := newTestClient(t, base)
	under := holdResponses(t, c, 1)[0]
	mustRoundTrip(t, c)
	c.Close()
	if body, err := io.ReadAll(under); string(body) != "{}" || err != nil {
		t.Errorf("the active response is %q, %v", body, err)
	}
	mustRoundTrip(t, c)
	if seen := connections(); idleConns(c) > 0 || !slices.Equal(seen, []int{0, 1, 2}) {
		t.Errorf("%d are idle, requests came on %v", idleConns(c), seen)
	}
}
