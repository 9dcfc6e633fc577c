package http1

import (
	"io"
	"net/http"
	"sync"
)

// maxDrain bounds the unread request body discarded to keep the connection, as in net/http.
const maxDrain = 256 << 10

// A requestBody is the body of a request, of declared length. No byte after the body is read from
// the connection. Read and Close may be called by any goroutine, also after the handler has
// returned.
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

// readLocked reads once, and may block. The last bytes come with io.EOF. The caller holds mu.
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
	if n = c.consumeUnread(p); n == 0 {
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

// Close makes further reads fail, and waits for a read in progress. The rest of the body is drained
// when the response is sent. A second call does nothing.
func (b *requestBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

// drainBody discards the rest of the body, if less than maxDrain, and reports whether the body has
// ended. Further reads fail if so, and in any case once the handler has returned. drainBody waits
// for a read in progress, and then for the rest of the body, up to the read deadline. Called in the
// goroutine of the response.
func (b *requestBody) drainBody() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	closed := b.closed
	b.closed = closed || b.w.handlerDone // no read beside lingeringClose
	switch {
	// After io.ErrUnexpectedEOF the client has disconnected, already seen by the handler.
	case b.remaining == 0, b.err == io.ErrUnexpectedEOF && (closed || b.remaining < maxDrain):
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
