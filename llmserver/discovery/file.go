package discovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"berth/llmserver"
)

// filePeriod is the time between two reads of a file.
const filePeriod = time.Second

// A file is a source of endpoints that reads a file again and again, and compares the content: a
// replaced symbolic link is noticed, and a file without changes is not parsed.
type file struct {
	status
	path  string
	parse func([]byte) ([]llmserver.Endpoint, error)
}

// NewFile returns the endpoints that parse finds in the file at path. parse must be pure.
func NewFile(path string, parse func([]byte) ([]llmserver.Endpoint, error), log *slog.Logger) Source {
	f := &file{path: path, parse: parse}
	f.log = log.With("source", f.String())
	return f
}

func (f *file) String() string { return "file " + f.path }

// Lookup reads the file.
func (f *file) Lookup(context.Context) ([]llmserver.Endpoint, error) {
	data, err := f.read()
	if err != nil {
		return nil, err
	}
	return f.parse(data)
}

// Run publishes the endpoints of each content that can be parsed. A content or an error that was
// seen before is not parsed or logged again.
func (f *file) Run(ctx context.Context, publish func([]llmserver.Endpoint)) {
	ticker := time.NewTicker(filePeriod)
	defer ticker.Stop()
	var seen []byte // the last content read; nil: none, or the last read failed
	for {
		data, err := f.read()
		switch {
		case err != nil:
			seen = nil
			f.failed(err)
		case seen == nil || !bytes.Equal(data, seen):
			seen = data
			f.use(data, publish)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// use publishes the endpoints of a new content.
func (f *file) use(data []byte, publish func([]llmserver.Endpoint)) {
	set, err := f.parse(data)
	if err != nil {
		f.failed(err)
		return
	}
	f.succeeded()
	publish(set)
}

// read returns the content, which is not nil if the error is.
func (f *file) read() ([]byte, error) {
	data, err := os.ReadFile(f.path)
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, fmt.Errorf("cannot read %s: %w", f.path, pathError.Err)
	}
	return append([]byte{}, data...), err
}
