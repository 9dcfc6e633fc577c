package http1

import "sync"

// A page is a buffer for a header and whatever arrives with it, and for composing a response.
type page [4 << 10]byte

// pages are the pages not in use, of servers and clients alike.
var pages = sync.Pool{New: func() any { return new(page) }}

// A readBuffer holds bytes that were read from a connection and not consumed. Empty, it holds no
// memory: an idle connection or a stream between two events costs no buffer.
type readBuffer struct {
	unread []byte
	page   *page // that unread lies in; nil if unread is empty or too large for a page
}

// releasePage discards what is unread and returns the page to the pool.
func (b *readBuffer) releasePage() {
	b.unread = nil
	if b.page != nil {
		pages.Put(b.page)
		b.page = nil
	}
}

// consume moves unread bytes to p and returns their number. It releases the page with the last one.
func (b *readBuffer) consume(p []byte) int {
	n := copy(p, b.unread)
	if b.unread = b.unread[n:]; n > 0 && len(b.unread) == 0 {
		b.releasePage()
	}
	return n
}
