package e2e

import (
	"bytes"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// leg is a direction and kind of traffic between an ingress and an agent.
type leg int

const (
	legAccept       leg = iota // an accepted connection of an ingress
	legControlCall             // a control call to the agent
	legControlReply            // the agent's reply to a control call
	legRequest                 // a client's request to the agent
	legResponse                // the response to a request
	legCount
)

// faultyProxy is a TCP proxy between an ingress and an agent that can delay or drop data. It
// forwards bytes and only distinguishes connections with control calls from those with requests.
// Messages are small, so a piece of data (the result of one read) is usually a whole message.
type faultyProxy struct {
	listener net.Listener
	agent    string // host and port

	// allow is called for each piece of data. If it returns false, the piece is dropped and the
	// connection closed. If it blocks, the piece is delayed and data on other connections may
	// overtake it; the piece is delivered even if the sender has disconnected.
	allow    func(leg) bool
	received [legCount]atomic.Int64 // pieces received, before the call of allow

	mu      sync.Mutex
	conns   map[*net.TCPConn]struct{} // open connections
	running sync.WaitGroup
}

// startProxy starts a proxy in front of an agent.
func startProxy(t *testing.T, listener net.Listener, agent string, allow func(leg) bool) *faultyProxy {
	t.Helper()
	m := &faultyProxy{listener: listener, agent: agent, allow: allow, conns: make(map[*net.TCPConn]struct{})}
	m.running.Go(m.accept)
	t.Cleanup(func() {
		m.partition()
		m.running.Wait()
	})
	return m
}

// listenLoopback listens on a free loopback port.
func listenLoopback(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (m *faultyProxy) url() string { return "http://" + m.listener.Addr().String() }

// accept handles connections until the listener is closed.
func (m *faultyProxy) accept() {
	for {
		conn, err := m.listener.Accept()
		if err != nil {
			return
		}
		if !m.receive(legAccept) {
			conn.Close()
			continue
		}
		m.running.Go(func() { m.handleConn(conn.(*net.TCPConn)) })
	}
}

// handleConn forwards one connection of an ingress.
func (m *faultyProxy) handleConn(downstream *net.TCPConn) {
	defer m.track(downstream)()
	first := make([]byte, 64<<10)
	n, err := downstream.Read(first)
	if err != nil {
		return
	}
	upstream, err := net.Dial("tcp", m.agent)
	if err != nil {
		downstream.SetLinger(0)
		return
	}
	defer m.track(upstream.(*net.TCPConn))()
	toAgent, fromAgent := legRequest, legResponse
	if line, _, _ := bytes.Cut(first[:n], []byte("\r\n")); bytes.Contains(line, []byte(" /internal/")) || bytes.HasPrefix(line, []byte("GET /health ")) {
		toAgent, fromAgent = legControlCall, legControlReply
	}
	m.running.Go(func() { m.forward(fromAgent, downstream, upstream, nil) })
	m.forward(toAgent, upstream, downstream, first[:n])
}

// receive counts a piece of data and returns the decision of allow.
func (m *faultyProxy) receive(l leg) bool {
	m.received[l].Add(1)
	return m.allow(l)
}

// forward copies data until one connection ends, then closes both.
func (m *faultyProxy) forward(l leg, to, from net.Conn, piece []byte) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		if len(piece) > 0 {
			if !m.receive(l) {
				return
			}
			if _, err := to.Write(piece); err != nil {
				return
			}
		}
		n, err := from.Read(buf)
		if piece = buf[:n]; err != nil {
			return
		}
	}
}

// track adds a connection to conns. The returned function removes and closes the connection.
func (m *faultyProxy) track(c *net.TCPConn) (drop func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns[c] = struct{}{}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.conns, c)
		c.Close()
	}
}

// reset resets all connections. New ones are still accepted.
func (m *faultyProxy) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.conns {
		c.SetLinger(0)
		c.Close()
	}
}

// partition resets all connections and refuses new ones.
func (m *faultyProxy) partition() {
	m.listener.Close()
	m.reset()
}

// legGates delays the data on closed legs until they are opened.
type legGates struct {
	mu     sync.Mutex
	closed [legCount]chan struct{}
}

// wait blocks while the leg is closed. It returns true, as required by faultyProxy.allow.
func (g *legGates) wait(l leg) bool {
	g.mu.Lock()
	closed := g.closed[l]
	g.mu.Unlock()
	if closed != nil {
		<-closed
	}
	return true
}

// close delays data on the leg until open is called.
func (g *legGates) close(l leg) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed[l] = make(chan struct{})
}

// open releases the delayed data of the leg.
func (g *legGates) open(l leg) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed[l] != nil {
		close(g.closed[l])
		g.closed[l] = nil
	}
}

func (g *legGates) openAll() {
	for l := range legCount {
		g.open(l)
	}
}

// listenMinBacklog listens with a backlog of one connection. Further connection attempts are
// retried by the kernel until the backlog has room.
func listenMinBacklog(t *testing.T) net.Listener {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	syscall.CloseOnExec(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// networkFaults drops some control calls and replies and delays others. Other data is not affected.
type networkFaults struct {
	mu            sync.Mutex
	rng           *rand.Rand
	lost, delayed atomic.Int64
	stopped       chan struct{} // closed: no more faults
}

// Percentages of dropped and delayed pieces, and the maximum delay.
const (
	droppedPercent = 2
	delayedPercent = 8
	maxDelay       = 50 * time.Millisecond
)

// allow implements faultyProxy.allow.
func (w *networkFaults) allow(l leg) bool {
	if l != legControlCall && l != legControlReply {
		return true
	}
	select {
	case <-w.stopped:
		return true
	default:
	}
	w.mu.Lock()
	n, delay := w.rng.IntN(100), time.Duration(w.rng.Int64N(int64(maxDelay)))
	w.mu.Unlock()
	switch {
	case n < droppedPercent:
		w.lost.Add(1)
		return false
	case n < droppedPercent+delayedPercent:
		w.delayed.Add(1)
		select {
		case <-time.After(delay):
		case <-w.stopped:
		}
	}
	return true
}
