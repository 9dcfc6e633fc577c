package http1

// A connState is what a serverConn is doing:
//
//	header ⇄ idle                     an incomplete header has arrived; nothing has
//	header, idle → active → idle      a request is being served
//	header, idle, active → closed     closed by the client or the server, or handed over
//
// A new connection is in stateHeader. Each transition is one CAS. So the server closes a connection
// only while no request is active on it, and a request whose header is complete gets its response.
type connState uint64

const (
	stateHeader connState = iota
	stateIdle
	stateActive
	stateClosed
)

// A timedState is a connState and the tick of the server's clock at which it began.
type timedState uint64

func newTimedState(s connState, since uint32) timedState {
	return timedState(s)<<32 | timedState(since)
}

func (s timedState) state() connState { return connState(s >> 32) }
func (s timedState) since() uint32    { return uint32(s) }

// transition enters a state. It returns false if the server has closed the connection. Only the
// connection's goroutine may call it.
func (c *serverConn) transition(to connState) bool {
	now := c.state.Load()
	return timedState(now).state() != stateClosed && c.state.CompareAndSwap(now, uint64(newTimedState(to, c.server.ticks.Load())))
}

// closeIf closes the connection, unless its state has changed since seen was read. Any goroutine may
// call it.
func (c *serverConn) closeIf(seen timedState) {
	if c.state.CompareAndSwap(uint64(seen), uint64(newTimedState(stateClosed, 0))) {
		c.TCPConn.Close() // no request is active that would have to be cancelled
	}
}
