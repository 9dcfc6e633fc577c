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

// leg is a part of the way between an ingress and an agent.
type leg int

const (
	arrival  leg = iota // a connection of an ingress, as it is accepted
	call                // a control call, to the agent
	reply               // what the agent says to it
	request             // a client's request, to the agent
	response            // what comes of it
	legs
)

// middleman is the network between an ingress and an agent. It knows nothing of HTTP but how to tell connections for
// control calls from those for requests. What the two write is small, so that a piece it reads is a whole message as a rule.
type middleman struct {
	listener net.Listener
	agent    string // host and port

	// fate decides about a piece: false loses it, together with its connection. A fate that takes its time makes the
	// piece late, and lets what goes over other connections overtake it; it arrives even if its sender has gone.
	fate func(leg) bool
	seen [legs]atomic.Int64 // pieces that came, before their fate

	mu    sync.Mutex
	conns map[*net.TCPConn]struct{} // all that are open
	busy  sync.WaitGroup
}

// between puts a middleman in front of an agent.
func between(t *testing.T, listener net.Listener, agent string, fate func(leg) bool) *middleman {
	t.Helper()
	m := &middleman{listener: listener, agent: agent, fate: fate, conns: make(map[*net.TCPConn]struct{})}
	m.busy.Go(m.accept)
	t.Cleanup(func() {
		m.partition()
		m.busy.Wait()
	})
	return m
}

// anyPort listens on a free port of the loopback.
func anyPort(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (m *middleman) url() string { return "http://" + m.listener.Addr().String() }

func (m *middleman) accept() {
	for {
		conn, err := m.listener.Accept()
		if err != nil {
			return
		}
		if !m.passes(arrival) {
			conn.Close()
			continue
		}
		m.busy.Go(func() { m.carry(conn.(*net.TCPConn)) })
	}
}

// carry serves one connection of an ingress.
func (m *middleman) carry(near *net.TCPConn) {
	defer m.hold(near)()
	first := make([]byte, 64<<10)
	n, err := near.Read(first)
	if err != nil {
		return
	}
	far, err := net.Dial("tcp", m.agent)
	if err != nil {
		near.SetLinger(0)
		return
	}
	defer m.hold(far.(*net.TCPConn))()
	there, back := request, response
	if line, _, _ := bytes.Cut(first[:n], []byte("\r\n")); bytes.Contains(line, []byte(" /internal/")) || bytes.HasPrefix(line, []byte("GET /health ")) {
		there, back = call, reply
	}
	m.busy.Go(func() { m.pump(back, near, far, nil) })
	m.pump(there, far, near, first[:n])
}

func (m *middleman) passes(l leg) bool {
	m.seen[l].Add(1)
	return m.fate(l)
}

// pump passes pieces on until a connection ends, and then ends the other.
func (m *middleman) pump(l leg, to, from net.Conn, piece []byte) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		if len(piece) > 0 {
			if !m.passes(l) {
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

// hold keeps a connection among those that are open, until what it returns is called.
func (m *middleman) hold(c *net.TCPConn) (drop func()) {
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

// reset resets every connection. New ones can be made.
func (m *middleman) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.conns {
		c.SetLinger(0)
		c.Close()
	}
}

// partition ends every connection, and refuses new ones.
func (m *middleman) partition() {
	m.listener.Close()
	m.reset()
}

// gates hold back what comes on the legs that they close.
type gates struct {
	mu     sync.Mutex
	closed [legs]chan struct{}
}

func (g *gates) fate(l leg) bool {
	g.mu.Lock()
	closed := g.closed[l]
	g.mu.Unlock()
	if closed != nil {
		<-closed
	}
	return true
}

func (g *gates) close(l leg) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed[l] = make(chan struct{})
}

func (g *gates) open(l leg) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed[l] != nil {
		close(g.closed[l])
		g.closed[l] = nil
	}
}

func (g *gates) openAll() {
	for l := range legs {
		g.open(l)
	}
}

// narrow listens with room for one connection that is not accepted yet. A second one is left to try again and again.
func narrow(t *testing.T) net.Listener {
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

// weather is how bad a network is: it loses some control calls and replies, and makes others late. It leaves all else alone.
type weather struct {
	mu         sync.Mutex
	rng        *rand.Rand
	lost, late atomic.Int64
	over       chan struct{} // closed: the sun shines
}

// In a hundred pieces, so many are lost or late, and no later than that.
const (
	lostPieces = 2
	latePieces = 8
	latest     = 50 * time.Millisecond
)

func (w *weather) fate(l leg) bool {
	if l != call && l != reply {
		return true
	}
	select {
	case <-w.over:
		return true
	default:
	}
	w.mu.Lock()
	n, delay := w.rng.IntN(100), time.Duration(w.rng.Int64N(int64(latest)))
	w.mu.Unlock()
	switch {
	case n < lostPieces:
		w.lost.Add(1)
		return false
	case n < lostPieces+latePieces:
		w.late.Add(1)
		select {
		case <-time.After(delay):
		case <-w.over:
		}
	}
	return true
}
