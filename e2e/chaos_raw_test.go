package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
)

// rawClient is an HTTP/1 client on a plain TCP connection, which can half-close and reset.
type rawClient struct {
	conn *net.TCPConn
	in   *bufio.Reader
	url  string
}

func (r *rawClient) close() {
	if r.conn != nil {
		r.conn.Close()
		r.conn = nil
	}
}

// send sends the request and receives the response. HTTP/1.1 connections are reused.
func (r *rawClient) send(a *attempt) {
	reused := r.conn != nil && r.url == a.url && a.protocol == rawHTTP11
	if !reused {
		r.close()
		conn, err := net.DialTimeout("tcp", strings.TrimPrefix(a.url, "http://"), clientDeadline)
		if err != nil {
			a.response.err, a.unreachable = err, errors.Is(err, syscall.ECONNREFUSED)
			return
		}
		r.conn, r.in, r.url = conn.(*net.TCPConn), bufio.NewReader(conn), a.url
	}
	r.conn.SetDeadline(time.Now().Add(clientDeadline))
	version, _ := strings.CutPrefix(string(a.protocol), "raw ")
	fmt.Fprintf(r.conn, "POST /v1/chat/completions %s\r\nHost: berth\r\nX-Session-Id: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		version[:len("HTTP/1.x")], a.session, len(a.body), a.body)
	conn := r.conn
	if a.disconnect != stays && a.afterBytes == 0 {
		defer time.AfterFunc(a.disconnectAfter, func() { a.disconnectNow(conn) }).Stop()
	}
	keep := r.receive(a, reused)
	if !keep || a.disconnect != stays || a.response.err != nil {
		r.close()
	}
}

// receive reads the response and reports whether the connection may be used again.
func (r *rawClient) receive(a *attempt, reused bool) (keep bool) {
	if _, err := r.in.Peek(1); err != nil {
		if a.response.err = err; reused && !errors.Is(err, os.ErrDeadlineExceeded) {
			a.response.err = errStale
		}
		return false
	}
	resp, err := http.ReadResponse(r.in, &http.Request{Method: http.MethodPost})
	if err != nil {
		a.response.err = err
		return false
	}
	a.response = response{status: resp.StatusCode, header: resp.Header}
	if a.afterBytes == 0 {
		a.response.body, a.response.err = io.ReadAll(resp.Body)
		return !resp.Close
	}
	a.response.body, a.response.err = io.ReadAll(io.LimitReader(resp.Body, int64(a.afterBytes)))
	if a.response.err != nil || len(a.response.body) < a.afterBytes {
		return false
	}
	if a.disconnectNow(r.conn); a.disconnect == halfClose {
		rest, err := io.ReadAll(resp.Body)
		a.response.body, a.response.err = append(a.response.body, rest...), err
		return false
	}
	a.response.err = context.Canceled
	return false
}

// disconnectNow disconnects as specified by the attempt.
func (a *attempt) disconnectNow(conn *net.TCPConn) {
	switch a.disconnect {
	case halfClose:
		conn.CloseWrite()
	case resets:
		conn.SetLinger(0)
		conn.Close()
	default:
		conn.Close()
	}
}
