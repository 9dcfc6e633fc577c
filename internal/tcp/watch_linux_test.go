package tcp

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// newTCPPair returns both ends of a loopback connection: the accepted one, which most tests watch,
// and the dialled one.
func newTCPPair(t testing.TB) (near, far *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	near, far = accepted.(*net.TCPConn), dialled.(*net.TCPConn)
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// watchForTest watches c until the test ends. The channel is closed by the callback.
func watchForTest(t testing.TB, c *net.TCPConn) (Watch, <-chan struct{}) {
	t.Helper()
	closed := make(chan struct{}) // a second callback panics
	w, err := WatchClose(c, func() { close(closed) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w, closed
}

func receiveClose(t testing.TB, closed <-chan struct{}) {
	t.Helper()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Fatal("the close of the connection was not reported")
	}
}

var waysToClose = map[string]func(*net.TCPConn){
	"closed":      func(c *net.TCPConn) { c.Close() },
	"half-closed": func(c *net.TCPConn) { c.CloseWrite() },
	"reset":       func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
}

func TestWatchCloseReportsPeerClose(t *testing.T) {
	for name, closeConn := range waysToClose {
		t.Run(name, func(t *testing.T) {
			near, far := newTCPPair(t)
			_, closed := watchForTest(t, near)
			closeConn(far)
			receiveClose(t, closed)
		})
		t.Run(name+" before the watch", func(t *testing.T) {
			near, far := newTCPPair(t)
			closeConn(far)
			if name != "reset" { // a read would consume a reset
				io.ReadAll(near)
			}
			_, closed := watchForTest(t, near)
			receiveClose(t, closed)
		})
		t.Run(name+" after unread data", func(t *testing.T) {
			near, far := newTCPPair(t)
			_, closed := watchForTest(t, near)
			io.WriteString(far, "unread")
			closeConn(far)
			receiveClose(t, closed)
		})
		t.Run(name+" by the accepting end", func(t *testing.T) {
			near, far := newTCPPair(t)
			_, closed := watchForTest(t, far)
			closeConn(near)
			receiveClose(t, closed)
		})
	}
}

func TestWatchCloseIgnoresData(t *testing.T) {
	near, far := newTCPPair(t)
	_, closed := watchForTest(t, near)
	got := make([]byte, 4)
	for range 100 {
		io.WriteString(far, "data")
		if _, err := io.ReadFull(near, got); err != nil || string(got) != "data" {
			t.Fatalf("read %q, %v", got, err)
		}
		io.WriteString(near, "back")
	}
	select {
	case <-closed:
		t.Error("a close was reported for an open connection")
	default:
	}
	far.CloseWrite()
	receiveClose(t, closed)
	if _, err := io.WriteString(near, "more"); err != nil {
		t.Errorf("write to a half-closed connection: %v", err)
	}
}

func TestWatchStopSuppressesCallback(t *testing.T) {
	near, far := newTCPPair(t)
	w, err := WatchClose(near, func() { t.Error("callback after Stop") })
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	w.Stop()
	Watch{}.Stop()
	other, otherFar := newTCPPair(t)
	_, closed := watchForTest(t, other)
	far.Close()
	otherFar.Close()
	receiveClose(t, closed) // the kernel reported far first
}

func TestWatchCloseUnsupportedConn(t *testing.T) {
	near, _ := newTCPPair(t)
	near.Close()
	if _, err := WatchClose(near, func() {}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("closed connection: error %v, want ErrUnsupported", err)
	}
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := WatchClose(file, func() {}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("file: error %v, want ErrUnsupported", err)
	}
	if n := countWatches(); n != 0 {
		t.Errorf("%d watches left", n)
	}
}

func countWatches() int {
	watches.mu.Lock()
	defer watches.mu.Unlock()
	return len(watches.callbacks)
}

func TestWatchCloseGoroutineEndsWithLastWatch(t *testing.T) {
	near, _ := newTCPPair(t)
	for range 3 {
		w, err := WatchClose(near, func() {})
		if err != nil {
			t.Fatal(err)
		}
		w.Stop()
		goleak.VerifyNone(t)
		near, _ = newTCPPair(t)
	}
}

// Connections and watches are opened and closed concurrently, so that descriptors are reused. Every
// watch that is not stopped must report the close of its own connection, once, and no other.
func TestWatchCloseUnderStorm(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const workers, rounds = 16, 60
	var watched, reported atomic.Int64
	var clients, servers sync.WaitGroup
	clients.Add(workers)
	for worker := range workers {
		servers.Go(func() { // the watching side
			for range rounds {
				c, err := l.Accept()
				if err != nil {
					t.Error(err)
					return
				}
				serveStormConn(t, c.(*net.TCPConn), &watched, &reported)
			}
		})
		go func() {
			defer clients.Done()
			for round := range rounds {
				dialStormConn(t, l.Addr().String(), worker+round)
			}
		}()
	}
	clients.Wait()
	servers.Wait()
	if w, n := watched.Load(), reported.Load(); w != n {
		t.Errorf("%d connections watched, %d closes reported", w, n)
	}
}

// serveStormConn watches a connection. If the client sends "s", the watch is stopped before any
// close; else the byte is sent back, upon which the client closes, and the close must be reported.
func serveStormConn(t *testing.T, c *net.TCPConn, watched, reported *atomic.Int64) {
	defer c.Close()
	var mayClose atomic.Bool // the peer has been allowed to close
	closed := make(chan struct{})
	w, err := WatchClose(c, func() {
		if !mayClose.Load() {
			t.Error("a close was reported before the peer closed")
		}
		close(closed)
	})
	if err != nil {
		t.Error(err)
		return
	}
	defer w.Stop()
	var kind [1]byte
	if _, err := io.ReadFull(c, kind[:]); err != nil {
		t.Error(err)
		return
	}
	if kind[0] == 's' {
		w.Stop()
		return
	}
	watched.Add(1)
	mayClose.Store(true)
	c.Write(kind[:])
	select {
	case <-closed:
		reported.Add(1)
	case <-time.After(20 * time.Second):
		t.Error("the close of a connection was not reported")
	}
}

func dialStormConn(t *testing.T, address string, n int) {
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Error(err)
		return
	}
	c := nc.(*net.TCPConn)
	defer c.Close()
	if n%4 == 0 {
		io.WriteString(c, "s")
		io.Copy(io.Discard, c) // until the server closes
		return
	}
	io.WriteString(c, "k")
	io.ReadFull(c, make([]byte, 1))
	switch n % 4 {
	case 1:
		c.CloseWrite()
		io.Copy(io.Discard, c)
	case 2:
		c.SetLinger(0)
	}
}
