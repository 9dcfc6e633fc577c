package telemetry

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// disk is a file that blocks writes while it is held, and takes only the first bytes of a write
// while it is full.
type disk struct {
	bytes.Buffer
	hold   chan struct{} // nil: writes do not block
	full   bool
	closed bool
}

func (d *disk) Write(p []byte) (int, error) {
	if d.hold != nil {
		<-d.hold
	}
	if d.full {
		n, _ := d.Buffer.Write(p[:min(3, len(p))])
		return n, errors.New("no space left on device")
	}
	return d.Buffer.Write(p)
}

func (d *disk) Close() error {
	d.closed = true
	return nil
}

func spooled(t *testing.T, out io.WriteCloser) (s *spool, dropped *atomic.Int64, log *logBuffer) {
	dropped, log = new(atomic.Int64), new(logBuffer)
	s = newSpool("the log", func(lines int) { dropped.Add(int64(lines)) }, log.logger())
	s.setOutput(out)
	t.Cleanup(s.close)
	return s, dropped, log
}

func TestSpoolWriteDoesNotBlockOnTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{hold: make(chan struct{})}
		s, dropped, _ := spooled(t, d)
		line := []byte(strings.Repeat("x", 1<<20-1) + "\n")
		s.Write(line)
		synctest.Wait() // the write blocks
		for range 2 + maxSpooled/len(line) {
			s.Write(line)
		}
		if n := dropped.Load(); n != 2 {
			t.Errorf("%v lines are dropped, want the two beyond what is kept", n)
		}
		close(d.hold)
		s.close()
		if want := len(line) * (1 + maxSpooled/len(line)); d.Len() != want || !d.closed {
			t.Errorf("%d bytes were written, want %d; closed: %t", d.Len(), want, d.closed)
		}
	})
}

func TestSpoolKeepsTheOrderAndWritesEverythingBeforeClose(t *testing.T) {
	d := new(disk)
	s, dropped, _ := spooled(t, d)
	var want strings.Builder
	for i := range 10_000 {
		line := strings.Repeat("x", i%7) + "\n"
		want.WriteString(line)
		s.Write([]byte(line))
	}
	s.close()
	if d.String() != want.String() {
		t.Errorf("%d bytes were written, want %d in their order", d.Len(), want.Len())
	}
	if s.Write([]byte("late\n")); dropped.Load() != 1 {
		t.Error("a line written after close is not counted as dropped")
	}
}

func TestSpoolCountsLinesThatCouldNotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{full: true}
		s, dropped, log := spooled(t, d)
		for range 3 {
			s.Write([]byte("1\n23\n4\n"))
			synctest.Wait()
		}
		if n := dropped.Load(); n != 6 {
			t.Errorf("%v lines are counted, want 6", n)
		}
		d.full = false
		s.Write([]byte("5\n"))
		synctest.Wait()
		if got := d.String(); got != "1\n2\n1\n1\n2\n5\n" {
			t.Errorf("the file is %q", got)
		}
		d.full = true
		if text := log.take(); strings.Count(text, "no space left") != 1 {
			t.Errorf("not logged once:\n%s", text)
		}
		s.setOutput(new(disk)) // which takes it
		s.Write([]byte("5\n"))
		synctest.Wait()
		s.setOutput(d)
		s.Write([]byte("6\n"))
		synctest.Wait()
		if text := log.take(); strings.Count(text, "no space left") != 1 {
			t.Errorf("the next outage is not logged:\n%s", text)
		}
	})
}

func TestSpoolCloseGivesUpABlockedFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{hold: make(chan struct{})}
		s, _, log := spooled(t, d)
		s.Write([]byte("1\n"))
		s.close()
		if !strings.Contains(log.take(), "are lost") {
			t.Error("the loss is not logged")
		}
		close(d.hold)
	})
}
