package http1

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"testing"
	"testing/iotest"
)

// Answers that are well-formed, by their framing.
var wellFormedResponses = map[string]struct{ method, answer, body string }{
	"a length":       {"POST", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello"},
	"a length twice": {"POST", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\ncontent-length: 5\r\n\r\nhello", "hello"},
	"chunks":         {"POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0000c \t\r\n, and world\n\r\n0\r\n\r\n", "hello, and world\n"},
	"an extension":   {"POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5;a=\"b\"\r\nhello\r\n0;last\r\n\r\n", "hello"},
	"a trailer":      {"POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: A, b\r\n\r\n5\r\nhello\r\n0\r\nA: 1\r\nc: 2\r\n\r\n", "hello"},
	"to the close":   {"POST", "HTTP/1.1 200 OK\r\n\r\nhello", "hello"},
	"interim":        {"POST", "HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello"},
	"both":           {"POST", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "hello"},
	"HEAD":           {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", ""},
	"HEAD, chunked":  {"HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", ""},
	"204":            {"POST", "HTTP/1.1 204 No Content\r\n\r\n", ""},
	"304":            {"POST", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", ""},
	"no reason":      {"POST", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", ""},
	"bare newlines":  {"POST", "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", "hello"},
	"a large head":   {"POST", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 9000) + "\r\nContent-Length: 5\r\n\r\nhello", "hello"},
}

func TestAnAnswerIsTheSameWhereverReadsCutIt(t *testing.T) {
	for name, c := range wellFormedResponses {
		t.Run(name, func(t *testing.T) {
			cuts := []int{1, 2, 3, 7, 0}
			for cut := range min(len(c.answer), 300) {
				cuts = append(cuts, cut+1)
			}
			for _, size := range []int{1, 2, 3, 1000} {
				for _, cut := range cuts {
					rt, err := receiveScripted(c.method, &scriptConn{data: []byte(c.answer), maxRead: cut})
					if err != nil {
						t.Fatal(err)
					}
					body, err := io.ReadAll(limitedReader{rt.response.Body, size})
					if string(body) != c.body || err != nil {
						t.Fatalf("in pieces of %d, read by %d, the body is %q, %v; want %q", cut, size, body, err, c.body)
					}
				}
			}
		})
	}
}

// onlyReader reads up to size bytes at once.
type limitedReader struct {
	io.Reader
	size int
}

func (r limitedReader) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(len(p), r.size)]) }

func TestABodyKeepsTheContractOfReaders(t *testing.T) {
	for name, c := range wellFormedResponses {
		rt, err := receiveScripted(c.method, &scriptConn{data: []byte(c.answer), maxRead: 3})
		if err != nil {
			t.Fatal(err)
		}
		if err := iotest.TestReader(rt.response.Body, []byte(c.body)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Wherever the connection ends, it is told; only a body that ends with it cannot be cut short unseen.
func TestAnAnswerThatIsCutShortNeverLooksComplete(t *testing.T) {
	reset := errors.New("reset")
	for name, c := range wellFormedResponses {
		for cut := range len(c.answer) {
			for _, end := range []error{io.EOF, reset} {
				rt, err := receiveScripted(c.method, &scriptConn{data: []byte(c.answer[:cut]), finalErr: end})
				if err != nil {
					continue
				}
				body, err := io.ReadAll(rt.response.Body)
				switch {
				case end == io.EOF && name == "to the close":
				case end == io.EOF && err != io.ErrUnexpectedEOF, end == reset && err == nil:
					t.Errorf("%s, cut after %d bytes: %q, %v", name, cut, body, err)
				}
				if _, again := rt.response.Body.Read(make([]byte, 1)); fmt.Sprint(again) != fmt.Sprint(err) && err != nil {
					t.Errorf("%s: after %v comes %v", name, err, again)
				}
			}
		}
	}
}

func TestTrailersAreAnnouncedAndThenTold(t *testing.T) {
	rt, err := receiveScripted("POST", &scriptConn{data: []byte(wellFormedResponses["a trailer"].answer)})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(rt.response.Trailer, rt.response.Header); got != "map[A:[] B:[]] map[]" {
		t.Errorf("before the body the trailer and header are %s", got)
	}
	io.Copy(io.Discard, rt.response.Body)
	if got := fmt.Sprint(rt.response.Trailer); got != "map[A:[1] B:[] C:[2]]" {
		t.Errorf("after the body the trailer is %s", got)
	}
}

func TestFramingThatCanBeUnderstoodInTwoWaysIsRefused(t *testing.T) {
	for _, fields := range []string{
		"Content-Length: 1\r\nContent-Length: 2", "Content-Length: 1, 1", "Content-Length: +1", "Content-Length: -1",
		"Content-Length:", "Content-Length: 1 1", "Content-Length: 0x1", "Content-Length: 9223372036854775808",
		"Content-Length: x\r\nTransfer-Encoding: chunked",
		"Transfer-Encoding: gzip, chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
		"Transfer-Encoding: identity", "Transfer-Encoding: chunked, identity", "Transfer-Encoding:", "Transfer-Encoding: \x0bchunked",
		"Transfer-Encoding : chunked", "X: y\r\n Transfer-Encoding: chunked", "Content-Length: 1\r\n 0",
		"Transfer-Encoding: chunked\r\nTrailer: content-length", "X: a\x00b", "X: a\rb", ": x", "X y: z",
	} {
		if rt, err := receiveScripted("POST", &scriptConn{data: []byte("HTTP/1.1 200 OK\r\n" + fields + "\r\n\r\n1\r\nx\r\n0\r\n\r\n")}); err == nil {
			t.Errorf("%q was understood: %+v", fields, rt.response)
		}
	}
	if _, err := receiveScripted("POST", &scriptConn{data: []byte("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")}); err == nil {
		t.Error("chunks in HTTP/1.0 were understood")
	}
	for _, line := range []string{"HTTP/1.1 99 X", "HTTP/1.1 099 X", "HTTP/1.1 +20 X", "HTTP/1.1 2000 X", "HTTP/1.1  ", "HTTP/1.1", "HTTP/1.x 200 OK", "HTTP/1.10 200 OK", ""} {
		if _, err := receiveScripted("POST", &scriptConn{data: []byte(line + "\r\n\r\n")}); err == nil {
			t.Errorf("%q was understood", line)
		}
	}
}

func TestChunksThatAreMalformedBreakTheBody(t *testing.T) {
	extension := "1;" + strings.Repeat("x", 200) + "\r\nx\r\n"
	for want, bodies := range map[error][]string{
		errChunk: {
			"\r\n", "x\r\n", "-1\r\n", "0x1\r\nx\r\n", " 1\r\nx\r\n", "1 1\r\nx\r\n", "1 ;a\r\nx\r\n", ";a\r\n",
			"1\nx\r\n", "1\r\nx\n0\r\n\r\n", "1\r\nxy\r\n", "1\r\n\r\n", "1;a\rb\r\nx\r\n", "1;a\nx\r\n", "1\r\rx", "0\r\n\rx",
			"8000000000000000\r\nx\r\n", "10000000000000000\r\nx\r\n", "00000000000000001\r\nx\r\n",
		},
		errChunkOverhead:    {"1;" + strings.Repeat("x", 5000) + "\r\nx\r\n", strings.Repeat(extension, 50)},
		errTrailerTooLong:   {"0\r\nA: " + strings.Repeat("b", 5000) + "\r\n\r\n"},
		errMalformedHeader:  {"0\r\n\n", "0\r\nA: b\r\n", "0\r\nA\r\n\r\n", "0\r\nA: b\n\r\n\r\n"},
		io.ErrUnexpectedEOF: {"7fffffffffffffff\r\n", "0000000000000001\r\n"},
	} {
		for _, chunks := range bodies {
			answer := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
			if want != io.ErrUnexpectedEOF {
				answer += "0\r\n\r\n"
			}
			rt, err := receiveScripted("POST", &scriptConn{data: []byte(answer)})
			if err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(rt.response.Body); err != want {
				t.Errorf("%.40q was understood as %.20q, %v; want %v", chunks, body, err, want)
			}
		}
	}
}

func TestFieldsOfOneNameComeTogether(t *testing.T) {
	rt, err := receiveScripted("POST", &scriptConn{data: []byte("HTTP/1.1 204 X\r\na: 1\r\nB: \t2 2 \r\nA: 3\r\nc-d:\r\n\r\n")})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%q", rt.response.Header); got != `map["A":["1" "3"] "B":["2 2"] "C-D":[""]]` {
		t.Errorf("the header is %s", got)
	}
}

// One byte at a time is a slow sender, not a hostile one.
func TestManySmallChunksAreFine(t *testing.T) {
	const n = 20_000
	rt, err := receiveScripted("POST", &scriptConn{data: []byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1\r\nx\r\n", n) + "0\r\n\r\n")})
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(rt.response.Body); len(body) != n || err != nil {
		t.Errorf("%d bytes, %v", len(body), err)
	}
}

// What has come must not wait for what has not.
func TestAReadTakesWhatHasComeAndWaitsForNoMore(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, arrived := range []string{"5\r\nhello\r\n", "5\r\nhello\r", "5\r\nhello", "9\r\nhello", "3\r\nhel\r\n2\r\nlo\r\n5"} {
		s := &scriptConn{data: []byte(head + arrived), finalErr: errors.New("it would wait")}
		rt, err := receiveScripted("POST", s)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := rt.response.Body.Read(make([]byte, 100)); n != 5 || err != nil {
			t.Errorf("%q with the head: %d, %v", arrived, n, err)
		}
		s = &scriptConn{data: []byte(head + arrived), maxRead: len(head), finalErr: errors.New("it would wait")}
		if rt, err = receiveScripted("POST", s); err != nil {
			t.Fatal(err)
		}
		if n, err := rt.response.Body.Read(make([]byte, 100)); n != 5 || err != nil {
			t.Errorf("%q after the head: %d, %v", arrived, n, err)
		}
	}
}

func TestTheEndComesWithTheLastBytes(t *testing.T) {
	for _, name := range []string{"a length", "chunks", "a trailer"} {
		c := wellFormedResponses[name]
		rt, err := receiveScripted("POST", &scriptConn{data: []byte(c.answer)})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := rt.response.Body.Read(make([]byte, 100)); n != len(c.body) || err != io.EOF {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
}

func TestAReadAllocatesNothingAndAStreamHoldsNoBuffer(t *testing.T) {
	const events = 1000
	event := "data: " + strings.Repeat("x", 180) + "\n\n"
	chunk := fmt.Sprintf("%x\r\n%s\r\n", len(event), event)
	head := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	s := &scriptConn{data: []byte(head + strings.Repeat(chunk, events)), maxRead: len(chunk)}
	rt, err := receiveScripted("POST", s)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	rt.response.Body.Read(buf)
	waiting, err := receiveScripted("POST", &scriptConn{data: []byte(head + chunk), maxRead: len(head)})
	if err != nil {
		t.Fatal(err)
	}
	if waiting.page != nil || rt.page != nil || rt.unread != nil {
		t.Error("the page of the head is still held")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	if n := testing.AllocsPerRun(events-200, func() {
		if n, err := rt.response.Body.Read(buf); n == 0 || err != nil {
			t.Fatal(n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per event", n)
	}
}

func TestReadingAfterTheEndOrTheCloseIsToldApart(t *testing.T) {
	for _, whole := range []bool{true, false} {
		rt, err := receiveScripted("POST", &scriptConn{data: []byte(wellFormedResponses["a length"].answer)})
		if err != nil {
			t.Fatal(err)
		}
		want := http.ErrBodyReadAfterClose
		if whole {
			want = io.EOF
			io.Copy(io.Discard, rt.response.Body)
		}
		rt.response.Body.Close()
		if _, err := rt.response.Body.Read(make([]byte, 1)); err != want {
			t.Errorf("whole %t: %v", whole, err)
		}
	}
}
