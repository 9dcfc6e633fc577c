package http1

import (
	"io"
	"net/http"
	"sync"
)

// drainable is how much of a body is read that the handler has left, so that the connection can be kept: net/http's bound.
const maxDrain = 256 << 10

// A body is a request's, of declared length. It takes from the connection what is left of that and never more.
//
// Read and Close may be called by any goroutine, and after the handler has returned.
type requestBody struct {
	w *responseWriter

	mu        sync.Mutex
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
	return b.readRemaining(p)
}

// read reads once. The last bytes come with io.EOF.
func (b *requestBody) readRemaining(p []byte) (n int, err error) {
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
	if n = copy(p, c.unread); n > 0 {
		if c.unread = c.unread[n:]; len(c.unread) == 0 {
			c.releasePage()
		}
	} else if n, err = c.readRaw(p); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		b.err = err
		b.w.cancel() // as net/http does: nobody can tell any more what the client wants
		return 0, err
	}
	if b.remaining -= int64(n); b.remaining == 0 {
		err = io.EOF
	}
	return n, err
}

// Close ends reading. What is left is drained when the answer is sent.
func (b *requestBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

// drain reads and drops what is left, if that is not too much, and tells whether nothing is. It ends reading then.
func (b *requestBody) drain() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	closed := b.closed
	b.closed = closed || b.w.handlerDone // or who lingers would read beside a goroutine that the handler has left behind
	switch {
	case b.remaining == 0, b.err == io.ErrUnexpectedEOF && (closed || b.remaining < maxDrain): // nothing will come, as the handler has seen
		b.closed = true
		return true
	case b.remaining >= maxDrain:
		return false
	}
	p := pages.Get().(*page)
	defer pages.Put(p)
	for b.remaining > 0 {
		if _, err := b.readRemaining(p[:]); err != nil && err != io.EOF {
			return false
		}
	}
	b.closed = true
	return true
}
