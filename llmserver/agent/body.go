package agent

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// Why a body was not read; a *http.MaxBytesError is the third reason.
var (
	errSilent = errors.New("the rest of the request body did not arrive in time")
	errBudget = errors.New("too many bytes of request bodies are held")
)

const (
	// firstBuffer is what a body takes at first; it doubles from there.
	firstBuffer = 16 << 10
	// linger is how long a refused body is read on, for the client not to lose the answer.
	linger = 500 * time.Millisecond
)

// bodies reads request bodies into memory, each bounded in size and in silence, and all of them
// together in bytes.
type bodies struct {
	each, all int64         // bytes; no bound on all together if that is 0
	silence   time.Duration // the longest while a client uploads; 0 for no bound
	held      atomic.Int64
}

// body is a request's body. Its bytes count as held until the first release.
type body struct {
	data []byte
	of   *bodies
}

func (b *body) release() {
	if b.of != nil {
		b.of.held.Add(-int64(cap(b.data)))
		b.of = nil
	}
}

// read reads all of a body before anything is sent: net/http cuts an answer short that begins while
// the request is still being read. Memory follows what has arrived, so a declared length alone
// holds none. The body is to be released, unless there is an error.
func (s *bodies) read(w http.ResponseWriter, r *http.Request) (*body, error) {
	if r.ContentLength == 0 {
		return new(body), nil
	}
	b := &body{of: s}
	err := s.fill(b, w, http.MaxBytesReader(w, r.Body, s.each), r.ContentLength)
	if err == nil {
		err = s.deadline(w, time.Time{})
	}
	if err != nil {
		b.release()
		if r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		}
		s.deadline(w, time.Now().Add(linger)) // net/http reads on before it answers
		return nil, err
	}
	return b, nil
}

// fill reads until the end. size is the declared length, negative if there is none.
func (s *bodies) fill(b *body, w http.ResponseWriter, from io.Reader, size int64) error {
	for {
		if len(b.data) == cap(b.data) {
			if err := s.grow(b, size); err != nil {
				return err
			}
		}
		if err := s.deadline(w, time.Now().Add(s.silence)); err != nil {
			return err
		}
		n, err := from.Read(b.data[len(b.data):cap(b.data)])
		b.data = b.data[:len(b.data)+n]
		switch {
		case err == io.EOF:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errSilent
		case err != nil:
			return err
		}
	}
}

// grow makes room for twice of what has arrived, and for no more than there is to come.
func (s *bodies) grow(b *body, size int64) error {
	next := max(firstBuffer, 2*int64(cap(b.data)))
	if size >= int64(len(b.data)) {
		next = min(next, size+1) // one more, to see the end without growing
	}
	more := next - int64(cap(b.data))
	for held := s.held.Load(); ; held = s.held.Load() {
		if s.all > 0 && more > s.all-held {
			return errBudget
		}
		if s.held.CompareAndSwap(held, held+more) {
			break
		}
	}
	data := make([]byte, len(b.data), next)
	copy(data, b.data)
	b.data = data
	return nil
}

func (s *bodies) deadline(w http.ResponseWriter, at time.Time) error {
	if s.silence == 0 {
		return nil
	}
	return http.NewResponseController(w).SetReadDeadline(at)
}
