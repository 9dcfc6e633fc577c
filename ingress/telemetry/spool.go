package telemetry

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxSpooled bounds the unwritten bytes. A full disk costs lines, not requests.
	maxSpooled = 8 << 20
	// maxKeptBatch is the largest written batch for which the memory is reused.
	maxKeptBatch = 256 << 10
	// spoolCloseTimeout bounds the wait of close for the remaining lines.
	spoolCloseTimeout = 5 * time.Second
)

var errSpoolFull = errors.New("output too slow")

// A spool writes lines to a file, in order, on a goroutine of its own. Writers never wait for the
// file: they hold mu for no longer than a copy. Lines that cannot be kept or written are dropped
// and counted. The creator of a spool must close the spool after the last write.
type spool struct {
	name    string // of the output, for the log
	log     *slog.Logger
	dropped func(lines int) // counts dropped lines; called by any goroutine
	lost    atomic.Int64    // dropped lines not yet counted by the outage

	wake chan struct{} // holds an element while there may be something to write; closed by close
	done chan struct{} // closed by the writing goroutine

	mu      sync.Mutex // guards pending and closed, for no longer than a copy takes
	pending []byte     // whole lines
	closed  bool

	writing sync.Mutex // guards the fields below, during writes too
	out     io.WriteCloser
	midLine bool // the output ends within a line
	outage  outage
}

func newSpool(name string, dropped func(lines int), log *slog.Logger) *spool {
	s := &spool{name: name, log: log, dropped: dropped, wake: make(chan struct{}, 1), done: make(chan struct{})}
	s.outage = outage{log: log, level: slog.LevelError, begin: "lines are lost: " + name + " cannot be written", over: name + " can be written again"}
	go s.run()
	return s
}

// Write takes whole lines. Write never blocks on the output, and the error is always nil.
func (s *spool) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.pending)+len(p) > maxSpooled {
		s.dropLines(p)
		return len(p), nil
	}
	s.pending = append(s.pending, p...)
	select {
	case s.wake <- struct{}{}:
	default: // the writer has been woken already
	}
	return len(p), nil
}

func (s *spool) dropLines(lines []byte) {
	n := bytes.Count(lines, []byte("\n"))
	s.lost.Add(int64(n))
	s.dropped(n)
}

// setOutput directs further writes to out, nil for nowhere, and closes the previous output. It
// waits for a write in progress.
func (s *spool) setOutput(out io.WriteCloser) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.out != nil {
		s.out.Close() // the error of every write was seen
	}
	s.out, s.midLine = out, endsInLine(out, s.midLine)
	s.outage.reset()
}

// endsInLine reports whether an appended file ends within a line, which happens after a crash or a
// partial write. It returns unknown for an output that cannot be read.
func endsInLine(out io.Writer, unknown bool) bool {
	file, ok := out.(*os.File)
	if !ok {
		return unknown
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return unknown
	}
	if info.Size() == 0 {
		return false
	}
	written, err := os.Open(file.Name()) // because file is open for writing only
	if err != nil {
		return unknown
	}
	defer written.Close()
	last := []byte{'\n'}
	if _, err := written.ReadAt(last, info.Size()-1); err != nil {
		return unknown
	}
	return last[0] != '\n'
}

// run writes pending lines, all of them at once, until close.
func (s *spool) run() {
	defer close(s.done)
	var batch []byte
	for more := true; more; {
		_, more = <-s.wake
		s.mu.Lock()
		batch, s.pending = s.pending, batch[:0]
		s.mu.Unlock()
		s.writeBatch(batch)
		if cap(batch) > maxKeptBatch {
			batch = nil
		}
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	s.outage.logEnd(s.name + " could not be written to the end")
}

func (s *spool) writeBatch(batch []byte) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if len(batch) == 0 || s.out == nil {
		return
	}
	prefix := 0
	if s.midLine {
		batch, prefix = append([]byte("\n"), batch...), 1
	}
	n, err := s.out.Write(batch)
	if err != nil {
		s.dropLines(batch[max(n, prefix):])
	}
	if n > 0 {
		s.midLine = batch[n-1] != '\n'
	}
	lost := int(s.lost.Swap(0))
	if err == nil && lost > 0 {
		err = errSpoolFull
	}
	s.outage.record(err, lost)
}

// close writes the remaining lines, or gives up after spoolCloseTimeout. A second call does
// nothing.
func (s *spool) close() {
	s.mu.Lock()
	already := s.closed
	s.closed = true
	s.mu.Unlock()
	if already {
		return
	}
	close(s.wake)
	select {
	case <-s.done:
		s.setOutput(nil)
	case <-time.After(spoolCloseTimeout):
		s.log.Error("the last lines of " + s.name + " are lost: a write timed out")
	}
}
