package http1

// A connState is the state of a serverConn:
//
//	header   a part of a request header has arrived, or the connection is new
//	idle     nothing has arrived since the last response
//	active   a request is being served
//	closed   closed by the client or the server, or handed over
//
//	header ⇄ idle
//	header, idle → active → idle
//	header, idle, active → closed
//
// Each transition is one CAS. So the server closes a connection only without an active request, and
// a request with a complete header gets a response.
type connState uint64

const (
	stateHeader connState = iota
	stateIdle
	stateActive
	stateClosed
)

// A timedState is a connState and the tick of the server's clock at the beginning of the state.
type timedState uint64

func newTimedState(s connState, since uint32) timedState {
	return timedState(s)<<32 | timedState(since)
}

func (s timedState) state() connState { return connState(s >> 32) }
func (s timedState) since() uint32    { return uint32(s) }

// transition enters a state. It returns false if the server has closed the connection. Only the
// connection's goroutine may call transition; it does not block.
func (c *serverConn) transition(to connState) bool {
	now := c.state.Load()
	return timedState(now).state() != stateClosed && c.state.CompareAndSwap(now, uint64(newTimedState(to, c.server.ticks.Load())))
}

// closeIf closes the connection, unless the state has changed since the caller loaded seen. Only a
// seen state without a request may be passed. Any goroutine may call closeIf; it does not block.
func (c *serverConn) closeIf(seen timedState) {
	if c.state.CompareAndSwap(uint64(seen), uint64(newTimedState(stateClosed, 0))) {
		c.TCPConn.Close() // no request is active, so none is to be cancelled
	}
}
