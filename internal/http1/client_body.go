package http1

import (
	"berth/llmserver"
	"fmt"
	"io"
	"net/http"
)

// framing is how the end of a body is told.
type bodyFraming uint8

const (
	framingNone    bodyFraming = iota // there is none
	framingLength                     // by its length
	framingChunked                    // by itself
	framingClose                      // by the end of the connection
)

// Read returns what has arrived: it waits only if that is nothing, and reads the
// connection at most once if it finds a byte of the body there. The last
// bytes come with io.EOF if the end is known by then. A body that is cut short ends with
// io.ErrUnexpectedEOF, one whose request was cancelled with the cause of that.
func (x *roundTrip) Read(p []byte) (int, error) {
	for x.err == nil {
		if x.done.Load() {
			return 0, http.ErrBodyReadAfterClose
		}
		if len(p) == 0 {
			return 0, nil
		}
		n, err := x.readRaw(p) // waits here, with few frames around it: a stream keeps a stack as large as its wait is deep
		if n, err = x.decodeBody(p[:n], err); err != nil {
			x.err = x.endBody(err)
		}
		if n > 0 {
			return n, x.err
		}
	}
	return 0, x.err
}

// unframe takes the framing out of p, raw bytes of the body, where they lie, which makes them fewer and never more. err
// is what the connection said in place of any; the error that is returned ends the body.
func (x *roundTrip) decodeBody(p []byte, err error) (n int, _ error) {
	switch {
	case err == io.EOF && x.framing == framingClose:
		return 0, io.EOF
	case err != nil:
		return 0, bodyError(err)
	case x.framing == framingChunked:
		return x.decodeChunked(p)
	case x.framing == framingLength && int64(len(p)) >= x.remaining:
		x.reusable = x.reusable && int64(len(p)) == x.remaining // what follows was not asked for
		n, x.remaining = int(x.remaining), 0
		return n, io.EOF
	default:
		x.remaining -= int64(len(p))
		return len(p), nil
	}
}

func (x *roundTrip) decodeChunked(p []byte) (int, error) {
	n, used, err := x.chunks.decodeChunks(p)
	if err == io.EOF {
		x.reusable = x.reusable && used == len(p) // what follows was not asked for
		err = x.mergeTrailer()
	}
	return n, err
}

// take moves what was read with the head, or else reads the connection once.
func (x *roundTrip) readRaw(p []byte) (int, error) {
	if len(x.unread) > 0 {
		n := copy(p, x.unread)
		if x.unread = x.unread[n:]; len(x.unread) == 0 {
			x.releasePage()
		}
		return n, nil
	}
	n, err := x.conn.Read(p)
	if x.ctx.Err() != nil {
		return 0, x.ctx.Err() // some servers end a response properly when they see a disconnect
	}
	if n > 0 {
		err = nil // it comes again
	}
	return n, err
}

// cutShort is what an error of the connection means to the reader of a body that has not ended.
func bodyError(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return fmt.Errorf("the connection broke within the answer: %s", llmserver.FailureReason(err))
}
