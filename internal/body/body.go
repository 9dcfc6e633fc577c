package body

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// A Body is the body of a request in memory, which can be sent any number of times.
//
// The memory is pooled, and holds the bytes of another request after its return to the pool: when
// the body has been released and all readers are closed, whichever comes last. An http.RoundTripper
// may read a request body after returning the response, but always closes the body in the end. So a
// proxy gives each attempt a reader of its own, and releases the body when no attempt will follow.
type Body struct {
	data   []byte
	parts  [3][]byte // sent by readers
	buffer *[]byte   // the memory of data; nil if the body is empty
	budget *Budget

	uses     atomic.Int32 // 1 until Release, plus 1 for each open reader
	released atomic.Bool
}

func newBody(budget *Budget) *Body {
	b := &Body{budget: budget}
	b.uses.Store(1)
	return b
}

const (
	firstBuffer = 16 << 10
	// maxPrealloc is the longest declared length for which memory is reserved before the whole body
	// has arrived. Prompts are seldom longer, and the copies of a growing buffer cost as much as
	// the reads.
	maxPrealloc = 1 << 20
)

// grow makes room for more bytes than have arrived, up to limit: 16 KiB at first, then twice the
// current size. Once the first bytes have arrived, grow makes room for the whole limit, if limit is
// at most maxPrealloc and less than half of the budget is in use; the other half is for bytes
// received, not announced.
func (b *Body) grow(limit int64) error {
	room := max(firstBuffer, 2*int64(cap(b.data)))
	if len(b.data) > 0 && limit <= maxPrealloc && b.budget.belowHalf() {
		room = limit
	}
	size := bufferSize(int(min(limit, room)))
	if !b.budget.reserve(size - cap(b.data)) {
		return ErrOverBudget
	}
	buffer := getBuffer(size)
	data := append((*buffer)[:0], b.data...)
	if b.buffer != nil {
		putBuffer(b.buffer)
	}
	b.data, b.buffer = data, buffer
	return nil
}

// Bytes returns the body as received, regardless of Replace. The bytes are valid until Release.
func (b *Body) Bytes() []byte { return b.data }

// Released reports whether Release was called.
func (b *Body) Released() bool { return b.released.Load() }

// Replace makes all readers created afterwards send value in place of the bytes [start, end). No
// other byte changes, and none is copied. Of several calls only the last counts. Replace must not
// be called concurrently with Size or NewReader.
func (b *Body) Replace(start, end int, value []byte) {
	b.parts = [3][]byte{b.data[:start], value, b.data[end:]}
}

// Size returns the number of bytes sent by a new reader.
func (b *Body) Size() int64 {
	return int64(len(b.parts[0]) + len(b.parts[1]) + len(b.parts[2]))
}

// NewReader returns a reader of the whole body, which the caller must close. Readers are
// independent of each other. NewReader panics after Release.
func (b *Body) NewReader() *Reader {
	if b.released.Load() {
		panic("BUG: a reader of a released body")
	}
	b.uses.Add(1)
	return &Reader{body: b, rest: b.parts}
}

// Release returns the memory to the pool, at once or when the last reader is closed. Further calls
// do nothing.
func (b *Body) Release() {
	if !b.released.Swap(true) {
		b.endUse()
	}
}

// endUse ends one of the counted uses, and returns the memory to the pool after the last one.
func (b *Body) endUse() {
	if b.uses.Add(-1) > 0 || b.buffer == nil {
		return
	}
	b.budget.release(len(*b.buffer))
	putBuffer(b.buffer)
	b.data, b.parts, b.buffer = nil, [3][]byte{}, nil
}

// A Reader reads a body once. Close may be called at any time, also concurrently with a read, and
// more than once; no read touches the memory after Close has returned.
type Reader struct {
	mu   sync.Mutex
	body *Body // nil after Close
	rest [3][]byte
}

// Read implements io.Reader. After Close it returns http.ErrBodyReadAfterClose.
func (r *Reader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.body == nil {
		return 0, http.ErrBodyReadAfterClose
	}
	n := 0
	for i, part := range r.rest {
		c := copy(p[n:], part)
		r.rest[i] = part[c:]
		n += c
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// SendTo writes the unread bytes to w without copying them. Close waits for SendTo to return.
// SendTo is not named WriteTo, because net/http's transport would call io.WriterTo's method and
// cannot tolerate a blocking Close.
func (r *Reader) SendTo(w io.Writer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.body == nil {
		return http.ErrBodyReadAfterClose
	}
	for i, part := range r.rest {
		n, err := w.Write(part)
		if r.rest[i] = part[n:]; err != nil {
			return err
		}
	}
	return nil
}

// Close ends the use of the body's memory. The error is always nil.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.body != nil {
		r.body.endUse()
		r.body, r.rest = nil, [3][]byte{}
	}
	return nil
}
