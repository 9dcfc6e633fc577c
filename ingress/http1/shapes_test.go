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

// shape answers as the request's path asks for, and notes all that a handler can see.
func shape(s *stand, w http.ResponseWriter, r *http.Request) {
	r.Header = r.Header.Clone()
	s.note("%s %s %q %s host %q close %v length %d coding %v trailer %v", r.Method, r.RequestURI, r.URL, r.Proto, r.Host, r.Close,
		r.ContentLength, r.TransferEncoding, r.Trailer)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		s.note("%s: %q", name, r.Header[name])
	}
	answer, known := shapes[strings.TrimPrefix(r.URL.Path, "/")]
	if !known {
		answer = shapes["echo"]
	}
	if err := answer(w, r); err != nil {
		s.note("error %v", err)
	}
}

func write(w io.Writer, texts ...string) error {
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

func flush(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() }

// with answers with a header, of name and value after name and value, and a status.
func with(status int, body string, header ...string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, _ *http.Request) error {
		for i := 0; i < len(header); i += 2 {
			w.Header()[header[i]] = append(w.Header()[header[i]], header[i+1])
		}
		w.WriteHeader(status)
		if body == "" {
			return nil
		}
		return write(w, body)
	}
}

var long = strings.Repeat("0123456789abcdef", 6<<10)

var shapes = map[string]func(w http.ResponseWriter, r *http.Request) error{
	"echo": func(w http.ResponseWriter, r *http.Request) error {
		body, err := io.ReadAll(r.Body)
		return errors.Join(err, write(w, "<", string(body), ">"))
	},
	"nothing":      func(http.ResponseWriter, *http.Request) error { return nil },
	"empty":        func(w http.ResponseWriter, _ *http.Request) error { return write(w, "") },
	"2048":         with(200, long[:2048]),
	"2049":         with(200, long[:2049]),
	"3000":         with(200, long[:3000]),
	"5000":         with(200, long[:5000]),
	"long":         with(200, long),
	"known":        with(200, "hello", "Content-Length", "5"),
	"known long":   with(200, long, "Content-Length", strconv.Itoa(len(long))),
	"known none":   with(200, "", "Content-Length", "0"),
	"too few":      with(200, "hell", "Content-Length", "5"),
	"too few none": with(200, "", "Content-Length", "5"),
	"too many":     with(200, "hello!", "Content-Length", "5"),
	"bad length":   with(200, "hello", "Content-Length", "-5"),
	"odd length":   with(200, "hello", "Content-Length", "5x"),
	"two lengths":  with(200, "hello", "Content-Length", "5", "Content-Length", "5"),
	"no content":   with(204, "", "Content-Length", "0", "X-A", "b"),
	"unmodified":   with(304, "", "Content-Type", "text/plain", "Content-Length", "7", "Etag", `"x"`),
	"body on 204":  with(204, "oh"),
	"body on 304":  with(304, "oh"),
	"created":      with(201, "made", "Location", "/x"),
	"status 299":   with(299, "odd"),
	"status 999":   with(999, "odder"),
	"closing":      with(200, "bye", "Connection", "close"),
	"Closing":      with(200, "bye", "Connection", "Close"),
	"keeping":      with(200, "hi", "Connection", "keep-alive"),
	"upgrading":    with(200, "hi", "Connection", "upgrade, close"),
	"closing long": with(200, long, "Connection", "close"),
	"values": with(200, "v", "X-Line", "a\r\nInjected: yes", "X-Space", "  a b\t", "X Bad", "v", "Bad\r\n", "v", "X-Many", "1", "X-Many", "2",
		"x-lower", "l", "", "nameless", "X-Utf8", "é", "X-Empty", ""),
	"nil value": func(w http.ResponseWriter, _ *http.Request) error {
		w.Header()["Content-Type"] = nil
		return write(w, "<html>")
	},
	"nil date": func(w http.ResponseWriter, _ *http.Request) error {
		w.Header()["Date"] = nil
		return write(w, "<html>")
	},
	"nil length": func(w http.ResponseWriter, _ *http.Request) error {
		w.Header()["Content-Length"] = nil
		return write(w, "x")
	},
	"html":        with(200, "<!DOCTYPE html><p>"),
	"png":         with(200, "\x89PNG\x0D\x0A\x1A\x0A"+long),
	"typed":       with(200, "<html>", "Content-Type", "text/x"),
	"encoded":     with(200, "<html>", "Content-Encoding", "gzip"),
	"encoded not": with(200, "<html>", "Content-Encoding", ""),
	"dated":       with(200, "x", "Date", "Sun, 06 Nov 1999 08:49:37 GMT"),
	"identity":    with(200, "x", "Transfer-Encoding", "identity"),
	"gzip coding": with(200, "x", "Transfer-Encoding", "gzip"),
	"chunked":     with(200, "x", "Transfer-Encoding", "chunked"),
	"coded known": with(200, "hello", "Transfer-Encoding", "chunked", "Content-Length", "5"),
	"identical":   with(200, "hello", "Transfer-Encoding", "identity", "Content-Length", "5"),
	"long header": with(200, "x", "X-Long", long[:9000]),
	"long coding": with(200, long, "Connection", long[:5000]),
	"twice": func(w http.ResponseWriter, _ *http.Request) error {
		w.WriteHeader(202)
		w.WriteHeader(500)
		return write(w, "x")
	},
	"status 42": func(w http.ResponseWriter, _ *http.Request) error { w.WriteHeader(42); return nil },

	"flush alone":  func(w http.ResponseWriter, _ *http.Request) error { return flush(w) },
	"flush first":  func(w http.ResponseWriter, _ *http.Request) error { return errors.Join(flush(w), write(w, "<html>")) },
	"flush known":  flushed("Content-Length", "12"),
	"flush":        flushed("X-A", "b"),
	"flush short":  flushed("Content-Length", "100"),
	"pieces":       pieces(10, 700, false),
	"small pieces": pieces(3000, 3, false),
	"events":       pieces(20, 60, true),
	"long events":  pieces(3, 9000, true),
	"kept and long": func(w http.ResponseWriter, _ *http.Request) error {
		return errors.Join(write(w, "<htm"), write(w, "l>", long, "!"), flush(w), write(w, "a", long, "b"), flush(w), write(w, long))
	},
	"known pieces": func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Length", "100000")
		var all error
		for range 100 {
			all = errors.Join(all, write(w, long[:1000]))
		}
		return errors.Join(all, write(w, "!"))
	},
	"changed": func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("X-A", "before")
		w.WriteHeader(200)
		w.Header().Set("X-A", "after")
		w.Header().Set("X-B", "after")
		w.Header().Set("Content-Length", "1")
		return write(w, "xyz")
	},
	"early hints": func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Link", "</a>")
		w.Header().Set("Content-Length", "5")
		w.WriteHeader(103)
		w.WriteHeader(102)
		w.Header().Set("Connection", "close")
		w.WriteHeader(103)
		return write(w, "hello")
	},
	"trailers": func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Add("Trailer", "X-One, x-two,Content-Length")
		w.Header().Add("Trailer", "X-Never")
		err := write(w, "x")
		w.Header().Set("X-One", "1\n")
		w.Header().Add("X-Two", "2")
		w.Header().Add("X-Two", "3")
		w.Header().Set(http.TrailerPrefix+"X-Three", "3")
		return err
	},
	"unannounced": func(w http.ResponseWriter, _ *http.Request) error {
		err := errors.Join(write(w, "x"), flush(w))
		w.Header().Set(http.TrailerPrefix+"X-Three", "3")
		return err
	},
	"announced so": with(200, "x", http.TrailerPrefix+"X-A", "b"),
	"unread":       with(401, "no"),
	"unread long":  with(401, long),
	"half read": func(w http.ResponseWriter, r *http.Request) error {
		_, err := io.ReadFull(r.Body, make([]byte, 3))
		return errors.Join(err, write(w, "half"))
	},
	"closed": func(w http.ResponseWriter, r *http.Request) error {
		err := r.Body.Close()
		_, after := r.Body.Read(make([]byte, 1))
		return errors.Join(err, after, write(w, "closed"))
	},
	"read and closed": func(w http.ResponseWriter, r *http.Request) error {
		_, err := io.Copy(io.Discard, r.Body)
		return errors.Join(err, r.Body.Close(), write(w, "closed"))
	},
	"read late": func(w http.ResponseWriter, r *http.Request) error {
		err := errors.Join(write(w, "early"), flush(w))
		_, late := io.ReadAll(r.Body)
		return errors.Join(err, late, write(w, "late"))
	},
	"duplex": func(w http.ResponseWriter, r *http.Request) error {
		err := http.NewResponseController(w).EnableFullDuplex()
		err = errors.Join(err, write(w, "early"), flush(w))
		body, late := io.ReadAll(r.Body)
		return errors.Join(err, late, write(w, string(body)))
	},
	"abort": func(w http.ResponseWriter, _ *http.Request) error { panic(http.ErrAbortHandler) },
	"abort kept": func(w http.ResponseWriter, _ *http.Request) error {
		write(w, "kept")
		panic("oh")
	},
	"abort flushed": func(w http.ResponseWriter, _ *http.Request) error {
		write(w, "sent")
		flush(w)
		panic(http.ErrAbortHandler)
	},
	"abort known": func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Length", "10")
		write(w, "sent")
		flush(w)
		panic(http.ErrAbortHandler)
	},
}

func flushed(header ...string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set(header[0], header[1])
		return errors.Join(write(w, "one"), flush(w), flush(w), write(w, "two", "six"), flush(w), write(w, "ten"))
	}
}

func pieces(n, size int, flushing bool) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, _ *http.Request) (all error) {
		for i := range n {
			all = errors.Join(all, write(w, long[i:i+size]))
			if flushing {
				all = errors.Join(all, flush(w))
			}
		}
		return all
	}
}
