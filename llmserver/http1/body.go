package http1

import (
	"berth/llmserver"
	"fmt"
	"io"
	"net/http"
)

// framing is how the end of a body is told.
type framing uint8

const (
	empty   framing = iota // there is none
	known                  // by its length
	chunked                // by itself
	toClose                // by the end of the connection
)

// Read returns what has arrived: it waits only if that is nothing, and reads the
// connection at most once if it finds a byte of the body there. The last
// bytes come with io.EOF if the end is known by then. A body that is cut short ends with
// io.ErrUnexpectedEOF, one whose request was cancelled with the cause of that.
func (x *exchange) Read(p []byte) (int, error) {
	if x.err != nil {
		return 0, x.err
	}
	if x.ended.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := x.read(p)
	if err != nil {
		x.err = x.end(err)
	}
	return n, x.err
}

func (x *exchange) read(p []byte) (int, error) {
	switch x.framing {
	case known:
		n, err := x.take(p)
		if int64(n) >= x.left {
			x.keep = x.keep && int64(n) == x.left // what follows was not asked for
			n, x.left = int(x.left), 0
			return n, io.EOF
		}
		x.left -= int64(n)
		return n, cutShort(err)
	case chunked:
		return x.readChunks(p)
	default:
		n, err := x.take(p)
		if err != nil && err != io.EOF {
			err = cutShort(err)
		}
		return n, err
	}
}

// readChunks reads raw bytes into p and takes the framing out of them there,
// which makes them fewer and never more.
func (x *exchange) readChunks(p []byte) (int, error) {
	for {
		raw, err := x.take(p)
		if err != nil {
			return 0, cutShort(err)
		}
		n, used, err := x.chunks.decode(p[:raw])
		if err == io.EOF {
			x.keep = x.keep && used == raw // what follows was not asked for
			err = x.mergeTrailer()
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// take moves what was read with the head, or else reads the connection once.
func (x *exchange) take(p []byte) (int, error) {
	if len(x.rest) > 0 {
		n := copy(p, x.rest)
		if x.rest = x.rest[n:]; len(x.rest) == 0 {
			x.dropPage()
		}
		return n, nil
	}
	n, err := x.conn.Read(p)
	if n > 0 {
		err = nil // it comes again
	}
	return n, err
}

// cutShort is what an error of the connection means to the reader of a body that has not ended.
func cutShort(err error) error {
	switch err {
	case nil:
		return nil
	case io.EOF:
		return io.ErrUnexpectedEOF
	default:
		return fmt.Errorf("the connection broke within the answer: %s", llmserver.Reason(err))
	}
}
