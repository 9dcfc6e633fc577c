package http1

import (
	"fmt"
	"io"
	"net/http"
)

// A bodyFraming is how the end of a response body is marked.
type bodyFraming uint8

const (
	framingNone    bodyFraming = iota // there is no body
	framingLength                     // by Content-Length
	framingChunked                    // by chunked coding
	framingClose                      // by the end of the connection
)

// Read returns the bytes of the body that have arrived. It waits only if there are none, and once it
// has a byte does not read the connection again. The last bytes come with io.EOF if the end is known
// by then. The error of a truncated body is io.ErrUnexpectedEOF, that of a cancelled request the
// cause of its context's end.
func (rt *roundTrip) Read(p []byte) (int, error) {
	for rt.err == nil {
		if rt.done.Load() {
			return 0, http.ErrBodyReadAfterClose
		}
		if len(p) == 0 {
			return 0, nil
		}
		n, err := rt.readRaw(p) // waits here, with few frames above: a stream keeps a stack as large as its wait is deep
		if n, err = rt.decodeBody(p[:n], err); err != nil {
			rt.err = rt.endBody(err)
		}
		if n > 0 {
			return n, rt.err
		}
	}
	return 0, rt.err
}

// decodeBody removes the framing from p, raw bytes of the body, in place, so that n <= len(p). err is
// the error of the connection, if it returned no bytes; the returned error ends the body.
func (rt *roundTrip) decodeBody(p []byte, err error) (n int, _ error) {
	switch {
	case err == io.EOF && rt.framing == framingClose:
		return 0, io.EOF
	case err != nil:
		return 0, bodyError(err)
	case rt.framing == framingChunked:
		return rt.decodeChunked(p)
	case rt.framing == framingLength && int64(len(p)) >= rt.remaining:
		rt.reusable = rt.reusable && int64(len(p)) == rt.remaining // more is unsolicited
		n, rt.remaining = int(rt.remaining), 0
		return n, io.EOF
	default:
		rt.remaining -= int64(len(p))
		return len(p), nil
	}
}

func (rt *roundTrip) decodeChunked(p []byte) (int, error) {
	n, used, err := rt.chunks.decodeChunks(p)
	if err == io.EOF {
		rt.reusable = rt.reusable && used == len(p) // more is unsolicited
		err = rt.mergeTrailer()
	}
	return n, err
}

// readRaw returns the bytes that were read with the header, or else reads the connection once.
func (rt *roundTrip) readRaw(p []byte) (int, error) {
	if n := rt.consume(p); n > 0 {
		return n, nil
	}
	n, err := rt.conn.Read(p)
	if rt.ctx.Err() != nil {
		return 0, rt.ctx.Err() // some servers end a response properly when they notice a disconnect
	}
	if n > 0 {
		err = nil // the next read returns it again
	}
	return n, err
}

// bodyError returns the error for the reader of a body that a connection error has truncated.
func bodyError(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return fmt.Errorf("the connection broke within the response: %s", reason(err))
}
