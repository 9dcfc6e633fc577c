package http1

import (
	"fmt"
	"io"
	"net/http"
)

// A bodyFraming is how the end of a response body is marked.
type bodyFraming uint8

const (
	framingNone    bodyFraming = iota // no body
	framingLength                     // by Content-Length
	framingChunked                    // by chunked coding
	framingClose                      // by the end of the connection
)

// Read returns the bytes of the body received so far. Read blocks only if there are none, and does
// not read the connection again after the first byte. One goroutine at a time may call Read; a
// concurrent Close ends the wait. The last bytes come with io.EOF if the end is already known. The
// error of a truncated body is io.ErrUnexpectedEOF; the error of a cancelled request is the cause
// of the context's end. After an error all calls return the same error.
func (rt *roundTrip) Read(p []byte) (int, error) {
	for rt.err == nil {
		if rt.done.Load() {
			return 0, http.ErrBodyReadAfterClose
		}
		if len(p) == 0 {
			return 0, nil
		}
		// A stream waits here, with few frames above, because the waiting goroutine keeps a stack
		// large enough for all of them.
		n, err := rt.readRaw(p)
		if n, err = rt.decodeBody(p[:n], err); err != nil {
			rt.err = rt.endBody(err)
		}
		if n > 0 {
			return n, rt.err
		}
	}
	return 0, rt.err
}

// decodeBody removes the framing from p, raw bytes of the body, in place; n <= len(p). err is the
// error of the connection, set only if p is empty. The returned error ends the body.
func (rt *roundTrip) decodeBody(p []byte, err error) (n int, _ error) {
	switch {
	case err == io.EOF && rt.framing == framingClose:
		return 0, io.EOF
	case err != nil:
		return 0, bodyError(err)
	case rt.framing == framingChunked:
		return rt.decodeChunked(p)
	case rt.framing == framingLength && int64(len(p)) >= rt.remaining:
		rt.reusable = rt.reusable && int64(len(p)) == rt.remaining // further bytes are unsolicited
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
		rt.reusable = rt.reusable && used == len(p) // further bytes are unsolicited
		err = rt.mergeTrailer()
	}
	return n, err
}

// readRaw returns bytes read together with the header, or else reads the connection once.
func (rt *roundTrip) readRaw(p []byte) (int, error) {
	if n := rt.consumeUnread(p); n > 0 {
		return n, nil
	}
	n, err := rt.conn.Read(p)
	if rt.ctx.Err() != nil {
		return 0, rt.ctx.Err() // some servers complete a response after a disconnect
	}
	if n > 0 {
		err = nil // returned again by the next read
	}
	return n, err
}

// bodyError returns the error of a body truncated by err, an error of the connection.
func bodyError(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return fmt.Errorf("the connection broke within the response: %s", errorReason(err))
}
