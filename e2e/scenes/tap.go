package scenes

import (
	"io"
	"net"
	"strconv"
	"sync"
)

// A tap forwards connections to an engine and records the requests on them. A stopped engine cannot
// do so itself. Bytes and closed connections pass unchanged and at once.
type tap struct {
	listener net.Listener
	target   string
	log      *arrivals

	mu     sync.Mutex // guards what follows
	closed bool
	conns  []net.Conn
	copies sync.WaitGroup
}

// startTap starts a tap on a free loopback port.
func startTap(target string) (*tap, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &tap{listener: l, target: target, log: new(arrivals)}
	t.copies.Go(t.accept)
	return t, nil
}

func (t *tap) accept() {
	for {
		client, err := t.listener.Accept()
		if err != nil {
			return
		}
		engine, err := net.Dial("tcp", t.target)
		if err != nil {
			client.Close()
			continue
		}
		t.mu.Lock()
		t.conns = append(t.conns, client, engine)
		if t.closed {
			client.Close()
			engine.Close()
		}
		t.mu.Unlock()
		t.copies.Go(func() { forward(engine, client, t.record) })
		t.copies.Go(func() { forward(client, engine, func([]byte) {}) })
	}
}

// record records the request of a chunk with the mark of one.
func (t *tap) record(chunk []byte) {
	if m := requestMark.FindSubmatch(chunk); m != nil {
		id, _ := strconv.Atoi(string(m[1]))
		t.log.begin(id, streamField.Match(chunk))
	}
}

// forward copies one direction until its end, and then closes that direction.
func forward(to, from net.Conn, see func([]byte)) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		see(buf[:n])
		if _, writeErr := to.Write(buf[:n]); writeErr != nil {
			from.Close()
			return
		}
		if err == io.EOF {
			to.(*net.TCPConn).CloseWrite()
			return
		} else if err != nil {
			to.Close()
			return
		}
	}
}

// close closes all connections and waits for the end of forwarding.
func (t *tap) close() {
	t.listener.Close()
	t.mu.Lock()
	t.closed = true
	for _, c := range t.conns {
		c.Close()
	}
	t.mu.Unlock()
	t.copies.Wait()
}
