package http1

import (
	"io"
	"net/http"
	"sync"
)

// maxDrain is how much unread request body is discarded to keep the connection, as in net/http.
const maxDrain = 256 << 10

// A requestBody is the body of a request, of declared length. It never reads more of the connection
// than that. Read and Close may be called by any goroutine, also after the handler has returned.
type requestBody struct {
	w *responseWriter

	mu        sync.Mutex // held while a read waits, as in net/http
	remaining int64
	closed    bool
	err       error // of the connection; of all further reads
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.readLocked(p)
}

// readLocked reads once. The last bytes come with io.EOF.
func (b *requestBody) readLocked(p []byte) (n int, err error) {
	switch {
	case b.err != nil:
		return 0, b.err
	case b.remaining == 0:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	c := b.w.conn
	p = p[:min(int64(len(p)), b.remaining)]
	if n = c.consume(p); n == 0 {
		n, err = c.readRaw(p)
	}
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		b.err = err
		b.w.cancel() // as in net/http: the request is incomplete for good
		return 0, err
	}
	if b.remaining -= int64(n); b.remaining == 0 {
		err = io.EOF
	}
	return n, err
}

// Close makes further reads fail. The rest of the body is drained when the response is sent.
func (b *requestBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

// drain discards the rest of the body, if it is less than maxDrain, and reports whether the body has
// ended. Then, and once the handler has returned, further reads fail.
func (b *requestBody) drain() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	closed := b.closed
	b.closed = closed || b.w.handlerDone // else a goroutine of the handler could read beside lingeringClose
	switch {
	case b.remaining == 0, b.err == io.ErrUnexpectedEOF && (closed || b.remaining < maxDrain): // the client has gone, as the handler has seen
		b.closed = true
		return true
	case b.remaining >= maxDrain:
		return false
	}
	p := pages.Get().(*page)
	defer pages.Put(p)
	for b.remaining > 0 {
		if _, err := b.readLocked(p[:]); err != nil && err != io.EOF {
			return false
		}
	}
	b.closed = true
	return true
}
