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

// tcpPair returns a connection: the end that is watched, and its peer.
func tcpPair(t testing.TB) (near, far *net.TCPConn) {
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

// watch watches over c until the test ends.
func watch(t testing.TB, c *net.TCPConn) (w Watch, gone <-chan struct{}) {
	t.Helper()
	told := make(chan struct{}) // a second call panics
	w, err := WatchClose(c, func() { close(told) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w, told
}

func receive(t testing.TB, told <-chan struct{}) {
	t.Helper()
	select {
	case <-told:
	case <-time.After(10 * time.Second):
		t.Fatal("the end of the connection is not told")
	}
}

var ends = map[string]func(*net.TCPConn){
	"closed":      func(c *net.TCPConn) { c.Close() },
	"half-closed": func(c *net.TCPConn) { c.CloseWrite() },
	"reset":       func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
}

func TestThePeersEndIsTold(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			near, far := tcpPair(t)
			_, gone := watch(t, near)
			end(far)
			receive(t, gone)
		})
		t.Run(name+" before the watch", func(t *testing.T) {
			near, far := tcpPair(t)
			end(far)
			if name != "reset" { // reading would consume that
				io.ReadAll(near)
			}
			_, gone := watch(t, near)
			receive(t, gone)
		})
		t.Run(name+" behind what lies unread", func(t *testing.T) {
			near, far := tcpPair(t)
			_, gone := watch(t, near)
			io.WriteString(far, "unread")
			end(far)
			receive(t, gone)
		})
		t.Run(name+" by the end that accepted", func(t *testing.T) {
			near, far := tcpPair(t)
			_, gone := watch(t, far)
			end(near)
			receive(t, gone)
		})
	}
}

func TestDataIsNoEndAndIsLeftToTheReader(t *testing.T) {
	near, far := tcpPair(t)
	_, gone := watch(t, near)
	got := make([]byte, 4)
	for range 100 {
		io.WriteString(far, "data")
		if _, err := io.ReadFull(near, got); err != nil || string(got) != "data" {
			t.Fatalf("read %q, %v", got, err)
		}
		io.WriteString(near, "back")
	}
	select {
	case <-gone:
		t.Error("an end is told of a connection that is open")
	default:
	}
	far.CloseWrite()
	receive(t, gone)
	if _, err := io.WriteString(near, "more"); err != nil {
		t.Errorf("the half that is open cannot be written: %v", err)
	}
}

func TestAStoppedWatchTellsNothing(t *testing.T) {
	near, far := tcpPair(t)
	w, err := WatchClose(near, func() { t.Error("told after Stop") })
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	w.Stop()
	Watch{}.Stop()
	other, otherFar := tcpPair(t)
	_, gone := watch(t, other)
	far.Close()
	otherFar.Close()
	receive(t, gone) // the kernel told of far first
}

func TestAConnectionThatIsClosedCannotBeWatched(t *testing.T) {
	near, _ := tcpPair(t)
	near.Close()
	if _, err := WatchClose(near, func() {}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("got %v", err)
	}
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := WatchClose(file, func() {}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a file: %v", err)
	}
	if left := watched(); left != 0 {
		t.Errorf("%d watches are left", left)
	}
}

func watched() int {
	all.mu.Lock()
	defer all.mu.Unlock()
	return len(all.gone)
}

func TestNothingRunsWhileNothingIsWatched(t *testing.T) {
	near, _ := tcpPair(t)
	for range 3 {
		w, err := WatchClose(near, func() {})
		if err != nil {
			t.Fatal(err)
		}
		w.Stop()
		goleak.VerifyNone(t)
		near, _ = tcpPair(t)
	}
}

// Connections come and go at once, some of them under the descriptors of others that have just been closed, and their
// watches with them. Every watch that is kept tells of its own connection's end and of no other's.
func TestInAStormEveryEndIsToldOnceAndToItsOwner(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const workers, rounds = 16, 60
	var watched, told atomic.Int64
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
				serveOne(t, c.(*net.TCPConn), &watched, &told)
			}
		})
		go func() {
			defer clients.Done()
			for round := range rounds {
				callOne(t, l.Addr().String(), worker+round)
			}
		}()
	}
	clients.Wait()
	servers.Wait()
	if w, n := watched.Load(), told.Load(); w != n {
		t.Errorf("of %d ends %d were told", w, n)
	}
}

// serveOne answers a byte, which says what is to come: a watch that is stopped first, or one that is kept to the end.
func serveOne(t *testing.T, c *net.TCPConn, watched, told *atomic.Int64) {
	defer c.Close()
	var ended atomic.Bool // by the peer, as far as it has been asked to
	gone := make(chan struct{})
	w, err := WatchClose(c, func() {
		if !ended.Load() {
			t.Error("an end is told before it came")
		}
		close(gone)
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
	ended.Store(true)
	c.Write(kind[:])
	select {
	case <-gone:
		told.Add(1)
	case <-time.After(20 * time.Second):
		t.Error("the end of a connection is not told")
	}
}

func callOne(t *testing.T, address string, n int) {
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Error(err)
		return
	}
	c := nc.(*net.TCPConn)
	defer c.Close()
	if n%4 == 0 {
		io.WriteString(c, "s")
		io.Copy(io.Discard, c) // until it is closed
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
