package http1

import (
	"io"
	"net/http"
	"sync"
)

// drainable is how much of a body is read that the handler has left, so that the connection can be kept: net/http's bound.
const drainable = 256 << 10

// A body is a request's, of declared length. It takes from the connection what is left of that and never more.
//
// Read and Close may be called by any goroutine, and after the handler has returned.
type body struct {
	x *exchange

	mu     sync.Mutex
	left   int64
	closed bool
	err    error // of the connection; of all further reads
}

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.read(p)
}

// read reads once. The last bytes come with io.EOF.
func (b *body) read(p []byte) (n int, err error) {
	switch {
	case b.err != nil:
		return 0, b.err
	case b.left == 0:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	c := b.x.conn
	p = p[:min(int64(len(p)), b.left)]
	if n = copy(p, c.rest); n > 0 {
		if c.rest = c.rest[n:]; len(c.rest) == 0 {
			c.dropPage()
		}
	} else if n, err = c.read(p); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		b.err = err
		b.x.cancel() // as net/http does: nobody can tell any more what the client wants
		return 0, err
	}
	if b.left -= int64(n); b.left == 0 {
		err = io.EOF
	}
	return n, err
}

// Close ends reading. What is left is drained when the answer is sent.
func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

// drain reads and drops what is left, if that is not too much, and tells whether nothing is. It ends reading then.
func (b *body) drain() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	closed := b.closed
	b.closed = closed || b.x.done // or who lingers would read beside a goroutine that the handler has left behind
	switch {
	case b.left == 0, b.err == io.ErrUnexpectedEOF && (closed || b.left < drainable): // nothing will come, as the handler has seen
		b.closed = true
		return true
	case b.left >= drainable:
		return false
	}
	p := pages.Get().(*page)
	defer pages.Put(p)
	for b.left > 0 {
		if _, err := b.read(p[:]); err != nil && err != io.EOF {
			return false
		}
	}
	b.closed = true
	return true
}
