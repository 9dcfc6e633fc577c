package body

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// The errors of Read. Their texts are sentences for the client.
var (
	ErrTooLarge    = errors.New("The request body is too large")
	ErrOverBudget  = errors.New("The server is out of memory for request bodies; try again later, or send less.")
	ErrIdleTimeout = errors.New("The rest of the request body did not arrive in time; send the whole body without pauses.")
	ErrAborted     = errors.New("The request body could not be read to its end; send the request again.")
)

// Options are the bounds of a request body.
type Options struct {
	MaxBytes    int64         // of one body
	IdleTimeout time.Duration // the longest silence of an uploading client; 0 for none
	Budget      *Budget       // shared with other bodies

	// CheckHeader, if not nil, is called with the header before the body is read. Read returns its
	// error.
	CheckHeader func(http.Header) error
}

// Read reads the whole body of a request into memory, and blocks while the client uploads. The
// caller must release the body. Errors are those above, ErrTooLarge wrapped by TooLarge, the error
// of CheckHeader, or http.ErrNotSupported wrapped if w cannot set a read deadline.
//
// A declared length alone reserves no memory: see grow.
//
// The read deadline is cleared on success and stays set after an error. net/http reads an unread
// body before sending the response, and without a deadline a silent client would delay the response
// forever. A passed deadline also cancels r's context.
func Read(w http.ResponseWriter, r *http.Request, o *Options) (*Body, error) {
	if r.ContentLength == 0 {
		return o.readEmpty(r)
	}
	if err := o.extendDeadline(w); err != nil {
		return nil, err
	}
	if err := o.checkHeader(r.Header); err != nil {
		return nil, err
	}
	if r.ContentLength > o.MaxBytes {
		return nil, TooLarge(o.MaxBytes)
	}
	b := newBody(o.Budget)
	err := o.readAll(b, w, r)
	if err == nil {
		err = o.setDeadline(w, time.Time{})
	}
	if err != nil {
		b.Release()
		return nil, err
	}
	r.Body.Close() // else net/http tries to read more before sending the response header
	b.parts[0] = b.data
	return b, nil
}

// readEmpty returns an empty body.
func (o *Options) readEmpty(r *http.Request) (*Body, error) {
	if err := o.checkHeader(r.Header); err != nil {
		return nil, err
	}
	return newBody(o.Budget), nil
}

func (o *Options) checkHeader(h http.Header) error {
	if o.CheckHeader == nil {
		return nil
	}
	return o.CheckHeader(h)
}

func (o *Options) readAll(b *Body, w http.ResponseWriter, r *http.Request) error {
	limit := r.ContentLength
	if limit < 0 {
		limit = max(o.MaxBytes, o.MaxBytes+1) // one byte too many is detected; without overflow
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
		case int64(len(b.data)) > o.MaxBytes:
			return TooLarge(o.MaxBytes)
		case err == io.EOF:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return ErrIdleTimeout
		case err != nil:
			return ErrAborted
		}
		if err := o.extendDeadline(w); err != nil {
			return err
		}
	}
	return nil
}

// TooLarge returns ErrTooLarge with the limit in bytes.
func TooLarge(limit int64) error {
	return fmt.Errorf("%w: the limit is %d bytes; send less.", ErrTooLarge, limit)
}

// extendDeadline gives the client another IdleTimeout to send more.
func (o *Options) extendDeadline(w http.ResponseWriter) error {
	return o.setDeadline(w, time.Now().Add(o.IdleTimeout))
}

func (o *Options) setDeadline(w http.ResponseWriter, deadline time.Time) error {
	if o.IdleTimeout == 0 {
		return nil
	}
	switch err := http.NewResponseController(w).SetReadDeadline(deadline); {
	case errors.Is(err, http.ErrNotSupported):
		return fmt.Errorf("set the read deadline of an upload: %w", err)
	case err != nil: // the connection is closed
		return ErrAborted
	}
	return nil
}
