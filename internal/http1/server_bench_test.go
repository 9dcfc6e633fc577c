package http1

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// benchmarkServer sends one request after the other on one connection and reads the responses,
// which have size bytes. Its allocations are those of the server and the handler.
func benchmarkServer(b *testing.B, request string, size int, h http.HandlerFunc) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := NewServer(&http.Server{Handler: h})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Close()
		<-served
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	out, in := []byte(request), make([]byte, size)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(out); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, in); err != nil {
			b.Fatal(err)
		}
	}
}

const benchmarkRequest = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: bench\r\nAccept: */*\r\n" +
	"Authorization: Bearer key\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"

// dateHeader has the length of every Date field.
const dateHeader = "Date: Mon, 02 Jan 2006 15:04:05 GMT\r\n"

func BenchmarkServerRequest(b *testing.B) {
	response := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n" + dateHeader + "\r\n{}"
	contentType, body := []string{"application/json"}, []byte("{}")
	benchmarkServer(b, benchmarkRequest, len(response), func(w http.ResponseWriter, r *http.Request) {
		r.Body.Read(make([]byte, 2))
		w.Header()["Content-Type"] = contentType
		w.Write(body)
	})
}

// An operation is a stream of 100 events.
func BenchmarkServerEvents(b *testing.B) {
	event := "data: " + strings.Repeat("x", 180) + "\n\n"
	response := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + dateHeader + "Transfer-Encoding: chunked\r\n\r\n" +
		strings.Repeat("bc\r\n"+event+"\r\n", 100) + "0\r\n\r\n"
	contentType, data := []string{"text/event-stream"}, []byte(event)
	benchmarkServer(b, benchmarkRequest, len(response), func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = contentType
		for range 100 {
			w.Write(data)
			w.(http.Flusher).Flush()
		}
	})
}
