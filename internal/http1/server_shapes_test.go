package http1

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// shapeHandler sends the response that the request's path names, and records everything that a
// handler can see.
func shapeHandler(s *testServer, w http.ResponseWriter, r *http.Request) {
	r.Header = r.Header.Clone()
	s.record("%s %s %q %s host %q close %v length %d coding %v trailer %v", r.Method, r.RequestURI, r.URL, r.Proto, r.Host, r.Close,
		r.ContentLength, r.TransferEncoding, r.Trailer)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		s.record("%s: %q", name, r.Header[name])
	}
	response, known := responseShapes[strings.TrimPrefix(r.URL.Path, "/")]
	if !known {
		response = responseShapes["echo"]
	}
	if err := response(w, r); err != nil {
		s.record("error %v", err)
	}
}

func writeStrings(w io.Writer, texts ...string) error {
	var all error
	for _, text := range texts {
		n, err := io.WriteString(w, text)
		if err == nil && n != len(text) {
			err = io.ErrShortWrite
		}
		all = errors.Join(all, err)
	}
	return all
}

func flushWriter(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() }

// respondWith responds with a status, a body and a header of alternating names and values.
func respondWith(status int, body string, header ...string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, _ *http.Request) error {
		for i := 0; i < len(header); i += 2 {
			w.Header()[header[i]] = append(w.Header()[header[i]], header[i+1])
		}
		w.WriteHeader(status)
		if body == "" {
			return nil
		}
		return writeStrings(w, body)
	}
}

var long = strings.Repeat("0123456789abcdef", 6<<10)

var responseShapes = map[string]func(w http.ResponseWriter, r *http.Request) error{
	"echo": func(w http.ResponseWriter, r *http.Request) error {
		body, err := io.ReadAll(r.Body)
		return errors.Join(err, writeStrings(w, "<", string(body), ">"))
	},
	"nothing":      func(http.ResponseWriter, *http.Request) error { return nil },
	"empty":        func(w http.ResponseWriter, _ *http.Request) error { return writeStrings(w, "") },
	"2048":         respondWith(200, long[:2048]),
	"2049":         respondWith(200, long[:2049]),
	"3000":         respondWith(200, long[:3000]),
	"5000":         respondWith(200, long[:5000]),
	"long":         respondWith(200, long),
	"known":        respondWith(200, "hello", "Content-Length", "5"),
	"known long":   respondWith(200, long, "Content-Length", strconv.Itoa(len(long))),
	"known none":   respondWith(200, "", "Content-Length", "0"),
	"too few":      respondWith(200, "hell", "Content-Length", "5"),
	"too few none": respondWith(200, "", "Content-Length", "5"),
	"too many":     respondWith(200, "hello!", "Content-Length", "5"),
	"bad length":   respondWith(200, "hello", "Content-Length", "-5"),
	"odd length":   respondWith(200, "hello", "Content-Length", "5x"),
	"two lengths":  respondWith(200, "hello", "Content-Length", "5", "Content-Length", "5"),
	"no content":   respondWith(204, "", "Content-Length", "0", "X-A", "b"),
	"unmodified":   respondWith(304, "", "Content-Type", "text/plain", "Content-Length", "7", "Etag", `"x"`),
	"body on 204":  respondWith(204, "oh"),
	"body on 304":  respondWith(304, "oh"),
	"created":      respondWith(201, "made", "Location", "/x"),
	"status 299":   respondWith(299, "odd"),
	"status 999":   respondWith(999, "odder"),
	"closing":      respondWith(200, "bye", "Connection", "close"),
	"Closing":      respondWith(200, "bye", "Connection", "Close"),
	"keeping":      respondWith(200, "hi", "Connection", "keep-alive"),
	"upgrading":    respondWith(200, "hi", "Connection", "upgrade, close"),
	"closing long": respondWith(200, long, "Connection", "close"),
	"values": respondWith(200, "v", "X-Line", "a\r\nInjected: yes", "X-Space", "  a b\t", "X Bad", "v", "Bad\r\n", "v", "X-Many", "1", "X-Many", "2",
		"x-lower", "l", "", "nameless", "X-Utf8", "é", "X-Empty", ""),
	"nil value": func(w http.ResponseWriter, _ *http.Request) error {
		w.Header()["Content-Type"] = nil
		return writeStrings(w, "<html>")
	},
	"nil date": func(w http.ResponseWriter, _ *http.Request) error {
		w.Header()["Date"] = nil
		return writeStrings(w, "<html>")
	},
	"nil length": func(w http.ResponseWriter, _ *http.Request) error {
		w.Header()["Content-Length"] = nil
		return writeStrings(w, "x")
	},
	"html":        respondWith(200, "<!DOCTYPE html><p>"),
	"png":         respondWith(200, "\x89PNG\x0D\x0A\x1A\x0A"+long),
	"typed":       respondWith(200, "<html>", "Content-Type", "text/x"),
	"encoded":     respondWith(200, "<html>", "Content-Encoding", "gzip"),
	"encoded not": respondWith(200, "<html>", "Content-Encoding", ""),
	"dated":       respondWith(200, "x", "Date", "Sun, 06 Nov 1999 08:49:37 GMT"),
	"identity":    respondWith(200, "x", "Transfer-Encoding", "identity"),
	"gzip coding": respondWith(200, "x", "Transfer-Encoding", "gzip"),
	"chunked":     respondWith(200, "x", "Transfer-Encoding", "chunked"),
	"coded known": respondWith(200, "hello", "Transfer-Encoding", "chunked", "Content-Length", "5"),
	"identical":   respondWith(200, "hello", "Transfer-Encoding", "identity", "Content-Length", "5"),
	"long header": respondWith(200, "x", "X-Long", long[:9000]),
	"long coding": respondWith(200, long, "Connection", long[:5000]),
	"twice": func(w http.ResponseWriter, _ *http.Request) error {
		w.WriteHeader(202)
		w.WriteHeader(500)
		return writeStrings(w, "x")
	},
	"status 42": func(w http.ResponseWriter, _ *http.Request) error { w.WriteHeader(42); return nil },

	"flush alone": func(w http.ResponseWriter, _ *http.Request) error { return flushWriter(w) },
	"flush first": func(w http.ResponseWriter, _ *http.Request) error {
		return errors.Join(flushWriter(w), writeStrings(w, "<html>"))
	},
	"flush known":  flushedPieces("Content-Length", "12"),
	"flush":        flushedPieces("X-A", "b"),
	"flush short":  flushedPieces("Content-Length", "100"),
	"pieces":       respondInPieces(10, 700, false),
	"small pieces": respondInPieces(3000, 3, false),
	"events":       respondInPieces(20, 60, true),
	"long events":  respondInPieces(3, 9000, true),
	"kept and long": func(w http.ResponseWriter, _ *http.Request) error {
		return errors.Join(writeStrings(w, "<htm"), writeStrings(w, "l>", long, "!"), flushWriter(w), writeStrings(w, "a", long, "b"), flushWriter(w), writeStrings(w, long))
	},
	"known pieces": func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Length", "100000")
		var all error
		for range 100 {
			all = errors.Join(all, writeStrings(w, long[:1000]))
		}
		return errors.Join(all, writeStrings(w, "!"))
	},
	"changed": func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("X-A", "before")
		w.WriteHeader(200)
		w.Header().Set("X-A", "after")
		w.Header().Set("X-B", "after")
		w.Header().Set("Content-Length", "1")
		return writeStrings(w, "xyz")
	},
	"early hints": func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Link", "</a>")
		w.Header().Set("Content-Length", "5")
		w.WriteHeader(103)
		w.WriteHeader(102)
		w.Header().Set("Connection", "close")
		w.WriteHeader(103)
		return writeStrings(w, "hello")
	},
	"trailers": func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Add("Trailer", "X-One, x-two,Content-Length")
		w.Header().Add("Trailer", "X-Never")
		err := writeStrings(w, "x")
		w.Header().Set("X-One", "1\n")
		w.Header().Add("X-Two", "2")
		w.Header().Add("X-Two", "3")
		w.Header().Set(http.TrailerPrefix+"X-Three", "3")
		return err
	},
	"unannounced": func(w http.ResponseWriter, _ *http.Request) error {
		err := errors.Join(writeStrings(w, "x"), flushWriter(w))
		w.Header().Set(http.TrailerPrefix+"X-Three", "3")
		return err
	},
	"announced so": respondWith(200, "x", http.TrailerPrefix+"X-A", "b"),
	"unread":       respondWith(401, "no"),
	"unread long":  respondWith(401, long),
	"half read": func(w http.ResponseWriter, r *http.Request) error {
		_, err := io.ReadFull(r.Body, make([]byte, 3))
		return errors.Join(err, writeStrings(w, "half"))
	},
	"closed": func(w http.ResponseWriter, r *http.Request) error {
		err := r.Body.Close()
		_, after := r.Body.Read(make([]byte, 1))
		return errors.Join(err, after, writeStrings(w, "closed"))
	},
	"read and closed": func(w http.ResponseWriter, r *http.Request) error {
		_, err := io.Copy(io.Discard, r.Body)
		return errors.Join(err, r.Body.Close(), writeStrings(w, "closed"))
	},
	"read late": func(w http.ResponseWriter, r *http.Request) error {
		err := errors.Join(writeStrings(w, "early"), flushWriter(w))
		_, late := io.ReadAll(r.Body)
		return errors.Join(err, late, writeStrings(w, "late"))
	},
	"duplex": func(w http.ResponseWriter, r *http.Request) error {
		err := http.NewResponseController(w).EnableFullDuplex()
		err = errors.Join(err, writeStrings(w, "early"), flushWriter(w))
		body, late := io.ReadAll(r.Body)
		return errors.Join(err, late, writeStrings(w, string(body)))
	},
	"abort": func(w http.ResponseWriter, _ *http.Request) error { panic(http.ErrAbortHandler) },
	"abort kept": func(w http.ResponseWriter, _ *http.Request) error {
		writeStrings(w, "kept")
		panic("oh")
	},
	"abort flushed": func(w http.ResponseWriter, _ *http.Request) error {
		writeStrings(w, "sent")
		flushWriter(w)
		panic(http.ErrAbortHandler)
	},
	"abort known": func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Length", "10")
		writeStrings(w, "sent")
		flushWriter(w)
		panic(http.ErrAbortHandler)
	},
}

func flushedPieces(header ...string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set(header[0], header[1])
		return errors.Join(writeStrings(w, "one"), flushWriter(w), flushWriter(w), writeStrings(w, "two", "six"), flushWriter(w), writeStrings(w, "ten"))
	}
}

func respondInPieces(n, size int, flushing bool) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, _ *http.Request) (all error) {
		for i := range n {
			all = errors.Join(all, writeStrings(w, long[i:i+size]))
			if flushing {
				all = errors.Join(all, flushWriter(w))
			}
		}
		return all
	}
}
