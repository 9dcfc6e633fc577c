package agent

import (
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"

	"berth/internal/body"
	"berth/internal/openai"
	"berth/llmserver"
	"berth/streaming"
)

// handleRequest handles all requests for the engine, on the goroutine of the request. A request
// with a token consumes the token even if no slot is needed; otherwise the slot would stay reserved
// for the rest of the lease.
func (s *Server) handleRequest(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(headerToken) != "" || openai.TakesSlot(r.Method, r.URL.Path) {
		s.serveInSlot(w, r)
		return
	}
	s.serveWithoutSlot(w, r)
}

// serveInSlot forwards a request in a slot, or refuses the request. With a token, the slot is
// consumed before the body is read, because the lease must not expire during the upload. Without
// one, a free slot is taken after the body was read, so that a slow upload holds no slot. Neither
// waits for a slot: only reservations queue.
//
// The deferred Finish ends the slot on every path, panics included (law 1). In the normal case the
// relay calls Finish earlier, after the end of the engine's response and before the last write, so
// that a client finds the slot free after the end of the response. The second Finish does nothing.
func (s *Server) serveInSlot(w http.ResponseWriter, r *http.Request) {
	var run *Run
	var b *body.Body
	var err error
	if token := r.Header.Get(headerToken); token != "" {
		if run, err = s.consumeToken(token); err == nil {
			defer run.Finish()
			b, err = s.readBody(w, r)
		}
	} else if b, err = s.readBody(w, r); err == nil {
		defer b.Release()
		if run, err = s.table.Acquire(); err == nil {
			defer run.Finish()
		}
	}
	if err != nil {
		s.writeRefusal(w, r, err)
		return
	}
	s.forward(w, r, b, run.Finish)
}

// consumeToken starts the request of a reserved token. Any other token, also one that is not a
// UUID, gives llmserver.ErrToken: a token is consumed or refused, never ignored (law 7). Of
// concurrent requests with one token exactly one gets the Run.
func (s *Server) consumeToken(token string) (*Run, error) {
	t, err := uuid.Parse(token)
	if err != nil {
		return nil, llmserver.ErrToken
	}
	return s.table.Consume(t)
}

// refusalLinger is the time for which the body of a refused request is read on, so that the client
// does not lose the response to a connection reset.
const refusalLinger = 500 * time.Millisecond

// readBody reads the whole body before anything is sent, because net/http cuts off a response that
// begins while the request is still being read. Size, idle time and the memory of all bodies
// together are bounded by Server.bodies. The caller releases the body, unless there is an error;
// then the connection ends with this request, since the rest of the body may still be on the way.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (*body.Body, error) {
	b, err := body.Read(w, r, &s.bodies)
	if err != nil {
		if r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		}
		if s.bodies.IdleTimeout > 0 {
			// net/http reads the rest of the body before the response is sent. The error is of a
			// closed connection.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusalLinger))
		}
	}
	return b, err
}

// serveWithoutSlot forwards a request that takes no slot, such as a GET. Such requests are
// forwarded while draining, too, and however busy the engine is.
func (s *Server) serveWithoutSlot(w http.ResponseWriter, r *http.Request) {
	b, err := s.readBody(w, r)
	if err != nil {
		s.writeRefusal(w, r, err)
		return
	}
	s.forward(w, r, b, nil)
}

// forward sends a request to the engine and relays the response. It owns b from now on, and blocks
// until the response is complete or the ingress has disconnected; the disconnect ends the request
// at the engine (law 11). beforeLastWrite, if not nil, is called at most once, on this goroutine,
// just before the end of the response is written.
//
// Failures keep their meaning for the ingress, as if there were no agent in between: a connection
// broken by the engine is broken towards the ingress, too, with a panic, and a failed connect is a
// marked refusal. Only a stale connection to the engine is retried here, once, because the ingress
// cannot see the staleness.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, b *body.Body, beforeLastWrite func()) {
	defer b.Release()
	resp, err := s.sendToEngine(r, b)
	if errors.Is(err, llmserver.ErrStale) {
		if resp, err = s.sendToEngine(r, b); isUnsent(err) {
			err = llmserver.ErrBroken // the engine may have received the first attempt before dying
		}
	}
	if isUnsent(err) {
		if !s.engineDown.Swap(true) {
			s.config.Log.Warn("engine unreachable", "error", err)
		}
		s.writeRefusal(w, r, err)
		return
	}
	if s.engineDown.Load() && s.engineDown.Swap(false) {
		s.config.Log.Info("engine reachable again")
	}
	if err != nil {
		if r.Context().Err() == nil {
			s.config.Log.Warn("no response from the engine", "error", err)
		}
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close() // aborts the request at the engine if the relay ended early
	b.Release()             // no further attempt needs the body, and the response may take long
	setReportHeader(w.Header(), s.table.ReportTo(holderName(r)))
	relay := streaming.Relay{WriteTimeout: s.config.WriteTimeout, BeforeLastWrite: beforeLastWrite, OmitErrorEvent: true}
	if _, err := relay.Copy(r.Context(), w, resp, nil); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// isUnsent reports whether err proves that no connection to the engine was established. Then the
// engine has seen nothing, and the ingress may send the request elsewhere (law 14).
func isUnsent(err error) bool {
	return errors.Is(err, llmserver.ErrNoConnection) || errors.Is(err, llmserver.ErrExhausted)
}

// sendToEngine sends a request to the engine and returns when the response header has arrived. It
// makes exactly one attempt; every attempt has its own reader of the body, which the backend may
// still read after sendToEngine has returned. Path, query and body pass unchanged (law 13), and the
// header except for the fields that streaming.CopyRequestHeader leaves out.
func (s *Server) sendToEngine(r *http.Request, b *body.Body) (*http.Response, error) {
	out := &http.Request{
		Method:        r.Method,
		URL:           &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery},
		Header:        make(http.Header, len(r.Header)),
		Body:          http.NoBody,
		ContentLength: b.Size(),
	}
	if b.Size() > 0 {
		out.Body = b.NewReader()
	}
	streaming.CopyRequestHeader(out.Header, r.Header)
	resp, _, err := s.config.Engine.Do(out.WithContext(r.Context()), llmserver.Token{})
	if err != nil {
		out.Body.Close() // on success the backend closes it
		return nil, err
	}
	resp.Request = nil // a response may take long, and the request is not needed any more
	return resp, nil
}

// writeRefusal responds to a request of which the engine has seen nothing. X-Slot-Refused marks the
// responses after which the ingress may try another replica (law 14); without the mark the request
// itself is at fault, and another replica would refuse as well. An error for which no response can
// be read any more, such as a broken upload, breaks the connection with a panic.
func (s *Server) writeRefusal(w http.ResponseWriter, r *http.Request, err error) {
	h := w.Header()
	setReportHeader(h, s.table.ReportTo(holderName(r)))
	mark := func(reason string) { h.Set(headerRefused, reason) }
	switch {
	case errors.Is(err, body.ErrTooLarge):
		writeError(w, http.StatusRequestEntityTooLarge, openai.TypeInvalidRequest, "request_too_large", "The request body is too large; send less.")
	case errors.Is(err, body.ErrIdleTimeout):
		writeError(w, http.StatusRequestTimeout, openai.TypeInvalidRequest, "body_timeout", body.ErrIdleTimeout.Error())
	case errors.Is(err, body.ErrOverBudget):
		mark(refusedFull) // another agent may have room
		h.Set("Retry-After", "1")
		writeError(w, http.StatusServiceUnavailable, openai.TypeServer, "request_memory_exhausted", "The agent is out of memory for request bodies; try again later, or send less.")
	case errors.Is(err, llmserver.ErrExhausted):
		mark(refusedFull) // another agent may have descriptors left, and the engine is not to blame
		h.Set("Retry-After", "1")
		writeError(w, http.StatusServiceUnavailable, openai.TypeServer, "server_exhausted", "The agent is out of connections; try again later.")
	case errors.Is(err, llmserver.ErrToken):
		mark(refusedToken)
		writeError(w, http.StatusConflict, openai.TypeInvalidRequest, "unknown_slot_token",
			"The slot token is not reserved here: it was never reserved, is spent, or has expired.")
	case errors.Is(err, llmserver.ErrFull):
		mark(refusedFull)
		h.Set("Retry-After", "1")
		writeError(w, http.StatusTooManyRequests, openai.TypeRateLimit, "slots_full", "All slots of the engine are in use.")
	case errors.Is(err, llmserver.ErrDraining):
		mark(refusedDraining)
		writeError(w, http.StatusServiceUnavailable, openai.TypeServer, "draining", "The engine is draining.")
	case errors.Is(err, llmserver.ErrNoConnection):
		mark(refusedEngine)
		writeError(w, http.StatusServiceUnavailable, openai.TypeServer, "engine_down", "The engine cannot be reached.")
	default:
		panic(http.ErrAbortHandler) // the upload broke off
	}
}
