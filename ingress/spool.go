package ingress

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
	// maxSpooled is how many bytes may wait to be written. A disk that takes no more for long costs lines, not requests.
	maxSpooled = 8 << 20
	// keptSpool is how much memory is kept for what is yet to come.
	keptSpool = 256 << 10
	// spoolPatience is how long the end waits for what has yet to be written.
	spoolPatience = 5 * time.Second
)

var errSpoolFull = errors.New("it takes lines more slowly than they come")

// spool writes lines to a file in the background and in the order in which they come. Whoever writes to it never waits
// for the file; lines that cannot be kept or written are dropped, and counted. It belongs to the server, which closes it after the last
// request.
type spool struct {
	name    string // of what it writes, for the log
	log     *slog.Logger
	dropped func(lines int) // hears of lines that will not be written
	lost    atomic.Int64    // such lines that the outage has not counted yet

	wake chan struct{} // holds an element while there may be something to write; closed at the end
	done chan struct{} // closed by the writing goroutine

	mu      sync.Mutex // guards what follows, for no longer than a copy takes
	pending []byte     // whole lines
	closed  bool

	writing sync.Mutex // guards what follows, during writes too
	out     io.WriteCloser
	torn    bool // what was written to out before ends within a line
	outage  outage
}

func newSpool(name string, dropped func(lines int), log *slog.Logger) *spool {
	s := &spool{name: name, log: log, dropped: dropped, wake: make(chan struct{}, 1), done: make(chan struct{})}
	s.outage = outage{log: log, level: slog.LevelError, begin: "lines are lost: " + name + " cannot be written", over: name + " can be written again"}
	go s.run()
	return s
}

// Write takes in whole lines. Its error is always nil.
func (s *spool) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.pending)+len(p) > maxSpooled {
		s.drop(p)
		return len(p), nil
	}
	s.pending = append(s.pending, p...)
	select {
	case s.wake <- struct{}{}:
	default: // it will look anyway
	}
	return len(p), nil
}

func (s *spool) drop(lines []byte) {
	n := bytes.Count(lines, []byte("\n"))
	s.lost.Add(int64(n))
	s.dropped(n)
}

// use has lines written to out from now on and closes what they were written to before; nil for nowhere.
func (s *spool) use(out io.WriteCloser) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.out != nil {
		s.out.Close() // every write was looked at
	}
	s.out, s.torn = out, endsInLine(out, s.torn)
	s.outage.reset()
}

// endsInLine reports whether a file that is appended to ends within a line, as it does after a write
// that failed in part or a crash. It returns unknown for what cannot be read.
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
	written, err := os.Open(file.Name()) // as file is open for writing alone
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

// run writes what is pending, all of it at once, until the end.
func (s *spool) run() {
	defer close(s.done)
	var batch []byte
	for more := true; more; {
		_, more = <-s.wake
		s.mu.Lock()
		batch, s.pending = s.pending, batch[:0]
		s.mu.Unlock()
		s.write(batch)
		if cap(batch) > keptSpool {
			batch = nil // a burst is over
		}
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	s.outage.end(s.name + " could not be written to the end")
}

func (s *spool) write(batch []byte) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if len(batch) == 0 || s.out == nil {
		return
	}
	mend := 0
	if s.torn {
		batch, mend = append([]byte("\n"), batch...), 1
	}
	n, err := s.out.Write(batch)
	if err != nil {
		s.drop(batch[max(n, mend):])
	}
	if n > 0 {
		s.torn = batch[n-1] != '\n'
	}
	lost := int(s.lost.Swap(0))
	if err == nil && lost > 0 {
		err = errSpoolFull
	}
	s.outage.record(err, lost)
}

// close writes what is pending, but waits no longer than its patience lasts. A second call does nothing.
func (s *spool) close() {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		return
	}
	close(s.wake)
	select {
	case <-s.done:
		s.use(nil)
	case <-time.After(spoolPatience):
		s.log.Error("the last lines of " + s.name + " are lost: the file takes none")
	}
}
