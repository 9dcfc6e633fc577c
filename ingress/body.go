package ingress

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"berth/internal/openai"
	"berth/llmserver/http1"
)

// Why a request body was not read, in sentences for the client.
var (
	errBodyTooLarge = errors.New("The request body is too large")
	errBudget       = errors.New("The server holds too many request bytes at the moment.")
	errBodySilent   = errors.New("The rest of the request body did not arrive in time.")
	errBodyAborted  = errors.New("The request body could not be read to its end.")
)

// A bodyReader reads request bodies, each bounded in size, in silence, and together with all others in memory.
type bodyReader struct {
	maxBytes int64
	timeout  time.Duration // the longest silence while a client uploads; 0 for no bound
	budget   *budget
}

// read reads the whole body of r into memory, which the caller gives back with body.Release. Its errors are those
// above, errBodyTooLarge wrapped with the limit, or http.ErrNotSupported wrapped if w cannot set the read deadline.
//
// Memory follows what has arrived, so that a declared length alone holds none: see grow.
//
// The read deadline is gone after success, and stays after an error: the server reads on before it answers a request
// whose body was left unread, and a silent client would hold the answer back. For the same reason a handler that
// answers without a read calls arm. An upload that went silent has also cancelled r's context.
func (br *bodyReader) read(w http.ResponseWriter, r *http.Request) (*body, error) {
	if err := br.arm(w); err != nil {
		return nil, err
	}
	if err := openai.CheckHeader(r.Header); err != nil {
		return nil, err
	}
	if r.ContentLength > br.maxBytes {
		return nil, br.tooLarge()
	}
	b := &body{budget: br.budget}
	b.uses.Store(1)
	err := br.fill(b, w, r)
	if err == nil {
		err = br.setDeadline(w, time.Time{})
	}
	if err != nil {
		b.Release()
		return nil, err
	}
	r.Body.Close() // else the server looks once more whether something is left, before it sends the header
	b.parts[0] = b.data
	return b, nil
}

func (br *bodyReader) fill(b *body, w http.ResponseWriter, r *http.Request) error {
	limit := r.ContentLength
	if limit < 0 {
		limit = br.maxBytes + 1 // so that one byte too many is seen
	}
	for int64(len(b.data)) < limit {
		if len(b.data) == cap(b.data) {
			if err := b.grow(limit); err != nil {
				return err
			}
		}
		n, err := r.Body.Read(b.data[len(b.data):cap(b.data)])
		b.data = b.data[:len(b.data)+n]
		switch {
		case int64(len(b.data)) > br.maxBytes:
			return br.tooLarge()
		case err == io.EOF:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errBodySilent
		case err != nil:
			return errBodyAborted
		}
		if err := br.arm(w); err != nil {
			return err
		}
	}
	return nil
}

func (br *bodyReader) tooLarge() error {
	return fmt.Errorf("%w: the limit is %d bytes.", errBodyTooLarge, br.maxBytes)
}

// arm gives the client the time of one silence to send more.
func (br *bodyReader) arm(w http.ResponseWriter) error {
	return br.setDeadline(w, time.Now().Add(br.timeout))
}

func (br *bodyReader) setDeadline(w http.ResponseWriter, deadline time.Time) error {
	if br.timeout == 0 {
		return nil
	}
	switch err := http.NewResponseController(w).SetReadDeadline(deadline); {
	case errors.Is(err, http.ErrNotSupported):
		return fmt.Errorf("bounding the upload: %w", err)
	case err != nil: // the connection is closed
		return errBodyAborted
	}
	return nil
}

// A body is a request's body in memory, to be sent any number of times.
//
// The memory is pooled: bytes used too long would be those of another request. It goes back when the body has been
// released and all its readers are closed, whichever comes last. That is what a proxy needs: an http.RoundTripper may
// read the request body after it has answered, but always closes it in the end. So hand each attempt a reader of its
// own, and release the body when no attempt will follow.
type body struct {
	data   []byte
	parts  [3][]byte // what readers send
	buffer *[]byte   // which data lies in; nil if empty
	budget *budget

	uses     atomic.Int32 // one until Release, and one per open reader
	released atomic.Bool
}

const (
	firstBuffer = 16 << 10
	// believed is the longest declared length that is made room for before it has arrived. Prompts are seldom longer, and
	// to copy one from buffer to buffer as it grows takes as long as to read it.
	believed = 1 << 20
)

// grow makes room for more than has arrived, limit at most: first for little, then for twice as much; but for all of a
// limit that is believed, as long as half of the budget is free. The other half is for what really comes.
func (b *body) grow(limit int64) error {
	room := max(firstBuffer, 2*int64(cap(b.data)))
	if len(b.data) > 0 && limit <= believed && b.budget.ample() {
		room = limit
	}
	size := bufferSize(int(min(limit, room)))
	if !b.budget.reserve(size - cap(b.data)) {
		return errBudget
	}
	buffer := getBuffer(size)
	data := append((*buffer)[:0], b.data...)
	if b.buffer != nil {
		putBuffer(b.buffer)
	}
	b.data, b.buffer = data, buffer
	return nil
}

// Bytes returns the body as it arrived, whatever its readers send. They are valid until Release.
func (b *body) Bytes() []byte { return b.data }

// replace makes every reader from now on send value in place of the bytes at the span, which must not
// be absent. Bytes is not affected. It must not run beside Size or NewReader.
func (b *body) replace(at openai.Span, value []byte) {
	if at.Absent() {
		panic("BUG: nothing to replace")
	}
	b.parts = [3][]byte{b.data[:at.Start], value, b.data[at.End:]}
}

// Size returns how many bytes a reader sends.
func (b *body) Size() int64 {
	return int64(len(b.parts[0]) + len(b.parts[1]) + len(b.parts[2]))
}

// NewReader returns a reader of the whole body, which must be closed. Readers are independent of each other. The body
// must not be released yet.
func (b *body) NewReader() io.ReadCloser {
	if b.released.Load() {
		panic("BUG: a reader of a released body")
	}
	b.uses.Add(1)
	return &replay{body: b, rest: b.parts}
}

// Release gives the memory back, at once or when the last reader is closed. Further calls do nothing.
func (b *body) Release() {
	if !b.released.Swap(true) {
		b.done()
	}
}

// done ends one use of the memory.
func (b *body) done() {
	if b.uses.Add(-1) > 0 || b.buffer == nil {
		return
	}
	b.budget.release(len(*b.buffer))
	putBuffer(b.buffer)
	b.data, b.parts, b.buffer = nil, [3][]byte{}, nil
}

// A replay reads a body once. Close may be called at any time, also during Read, and more than once: after the first
// call no Read touches the memory.
type replay struct {
	mu   sync.Mutex
	body *body // nil once closed
	rest [3][]byte
}

func (r *replay) Read(p []byte) (int, error) {
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

// SendTo writes what is left from where it lies. Close waits for it: see http1.Sender.
func (r *replay) SendTo(w io.Writer) error {
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

var _ http1.Sender = (*replay)(nil)

func (r *replay) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.body != nil {
		r.body.done()
		r.body, r.rest = nil, [3][]byte{}
	}
	return nil
}
