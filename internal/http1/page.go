package http1

import "sync"

// A page is a buffer for a header and the bytes arriving with the header, and for composing a
// response.
type page [4 << 10]byte

// pages are the unused pages, shared by servers and clients. Any goroutine may use the pool.
var pages = sync.Pool{New: func() any { return new(page) }}

// A readBuffer holds bytes read from a connection and not yet consumed. An empty readBuffer holds
// no memory: an idle connection or a stream between two events costs no buffer. Only the goroutine
// reading the connection may use a readBuffer.
type readBuffer struct {
	unread []byte
	page   *page // the memory of unread; nil if unread is empty or too large for a page
}

// releasePage discards the unread bytes and returns the page to the pool.
func (b *readBuffer) releasePage() {
	b.unread = nil
	if b.page != nil {
		pages.Put(b.page)
		b.page = nil
	}
}

// consumeUnread moves unread bytes to p and returns the number of bytes. The page is released with
// the last byte.
func (b *readBuffer) consumeUnread(p []byte) int {
	n := copy(p, b.unread)
	if b.unread = b.unread[n:]; n > 0 && len(b.unread) == 0 {
		b.releasePage()
	}
	return n
}
