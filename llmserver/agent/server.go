package agent

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"

	"berth/internal/tcp"
	"berth/llmserver"
	"berth/streaming"
)

// Config describes an agent.
type Config struct {
	Engine       llmserver.Backend // how the engine is spoken to
	Limit        int               // slots
	Secret       string            // that control calls must bring; empty: none
	MaxBodyBytes int64             // of one request
	MaxBuffered  int64             // bytes of all request bodies held at once; 0: no bound
	BodyTimeout  time.Duration     // the longest silence while an ingress uploads; 0: no bound
	WriteTimeout time.Duration     // how long an ingress may read nothing of an answer
	ProbeTimeout time.Duration     // for the engine's health
	Log          *slog.Logger
}

// Server is the agent of one engine. It is an http.Handler; whoever runs it
// calls Drain and then waits for Drained.
type Server struct {
	config Config
	table  *Table
	bodies bodies
	mux    *http.ServeMux

	unreachable atomic.Bool // the engine, by the last request: each outage is two lines of the log
}

// New makes an agent.
func New(c Config) *Server {
	s := &Server{config: c, table: NewTable(c.Limit), mux: http.NewServeMux()}
	s.bodies.each, s.bodies.all, s.bodies.silence = c.MaxBodyBytes, c.MaxBuffered, c.BodyTimeout
	s.mux.Handle("POST /internal/slots", s.control(s.reserve))
	s.mux.Handle("DELETE /internal/slots/{token}", s.control(s.release))
	s.mux.Handle("GET /internal/slots", s.control(s.read))
	s.mux.HandleFunc("/internal/", func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, http.StatusNotFound, "invalid_request_error", "unknown_url", "The agent has no such path.")
	})
	s.mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	s.mux.HandleFunc("GET /readyz", s.health)
	s.mux.HandleFunc("GET /health", s.health)
	s.mux.Handle("GET /metrics", newMetrics(s.table, &s.bodies))
	s.mux.HandleFunc("/", s.engine)
	return s
}

// ServeHTTP puts a report on every answer; who changes the counts, or waits, renews it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setReport(w.Header(), s.table.ReportTo(holder(r)))
	s.mux.ServeHTTP(w, r)
}

// Drain has the agent take nothing new; Drained is closed when all it had is done.
func (s *Server) Drain()                   { s.table.Drain() }
func (s *Server) Drained() <-chan struct{} { return s.table.Drained() }

// Read tells how the slots stand.
func (s *Server) Read() Reading { return s.table.Read() }

// control lets a control call through if it brings the secret.
func (s *Server) control(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get(headerSecret)), []byte(s.config.Secret)) != 1 {
			writeError(w, http.StatusForbidden, "invalid_request_error", "wrong_slot_secret",
				"The call does not bring the agent's slot secret.")
			return
		}
		next(w, r)
	})
}

// holder is who makes a call, by its own word; empty if it does not say.
func holder(r *http.Request) string {
	if name := r.Header.Get(headerHolder); len(name) <= maxHolder {
		return name
	}
	return ""
}

// maxHolder bounds the name of a holder.
const maxHolder = 64

// reserve answers POST /internal/slots.
func (s *Server) reserve(w http.ResponseWriter, r *http.Request) {
	var call reserveRequest
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4<<10))
	if err == nil {
		err = json.Unmarshal(body, &call)
	}
	if err != nil || call.Token == uuid.Nil || call.lease() <= 0 || call.WaitMS < 0 {
		writeError(w, http.StatusBadRequest, "invalid_request_error", "invalid_reservation",
			`A reservation is {"token":"<uuid>","lease_s":3,"wait_ms":0} with a lease above zero.`)
		return
	}
	wait := time.Duration(min(call.WaitMS, maxWait.Milliseconds())) * time.Millisecond
	_, err = s.table.ReserveFor(r.Context(), holder(r), call.Token, call.lease(), wait)
	if err == nil && wait > 0 && disconnected(r) {
		s.table.Release(call.Token) // the next in the queue gets the slot
		panic(http.ErrAbortHandler)
	}
	report := s.table.ReportTo(holder(r))
	setReport(w.Header(), report)
	answer, accepted := encodeReport(report), err == nil
	answer.Accepted = &accepted
	switch {
	case errors.Is(err, llmserver.ErrToken):
		s.refuse(w, r, err)
		return
	case errors.Is(err, llmserver.ErrFull):
		w.Header().Set(headerRefused, refusedFull)
	case errors.Is(err, llmserver.ErrDraining):
		w.Header().Set(headerRefused, refusedDraining)
	case err != nil:
		panic(http.ErrAbortHandler) // who asked has gone
	}
	writeJSON(w, http.StatusOK, answer)
}

// maxWait bounds wait_ms.
const maxWait = 10 * time.Minute

type connKey struct{}

// ConnContext is the ConnContext of the http.Server that an agent is served by. It lets the agent look
// at the connection of a call.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// disconnected reports whether the caller has closed the connection. A call's context ends later than
// that, perhaps not before the slot of another request of the same killed ingress has been given out.
func disconnected(r *http.Request) bool {
	c, ok := r.Context().Value(connKey{}).(syscall.Conn)
	return ok && tcp.PeerClosed(c)
}

// release answers DELETE /internal/slots/{token}.
func (s *Server) release(w http.ResponseWriter, r *http.Request) {
	token, err := uuid.Parse(r.PathValue("token"))
	if err != nil {
		writeError(w, http.StatusBadRequest, "invalid_request_error", "invalid_token", "The token is not a UUID.")
		return
	}
	s.table.Release(token)
	report := s.table.ReportTo(holder(r))
	setReport(w.Header(), report)
	writeJSON(w, http.StatusOK, encodeReport(report))
}

// read answers GET /internal/slots.
func (s *Server) read(w http.ResponseWriter, r *http.Request) {
	reading := s.table.ReadFor(holder(r))
	answer := encodeReport(reading.Report)
	answer.Reserved, answer.Running = &reading.Reserved, &reading.Running
	setReport(w.Header(), reading.Report)
	writeJSON(w, http.StatusOK, answer)
}

// health answers as the engine does, and 503 while draining.
func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	if s.table.Report().Draining {
		http.Error(w, "draining", http.StatusServiceUnavailable)
		return
	}
	ctx, stop := context.WithTimeout(r.Context(), s.config.ProbeTimeout)
	defer stop()
	if _, err := s.config.Engine.Probe(ctx); err != nil && !errors.Is(err, llmserver.ErrExhausted) { // which says nothing of the engine
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	io.WriteString(w, "ok\n")
}

// engine takes what is meant for the engine: a POST needs a slot. A token that
// comes with what needs none is consumed all the same, or its slot would stay reserved.
func (s *Server) engine(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(headerToken) != "" || llmserver.TakesSlot(r.Method, r.URL.Path) {
		s.gate(w, r)
		return
	}
	s.pass(w, r)
}

// gate lets a request into a slot. One with a token has its slot already; of one without, the body
// is read first, so that a slow client does not hold a slot with its upload.
func (s *Server) gate(w http.ResponseWriter, r *http.Request) {
	var run *Run
	var b *body
	var err error
	if token := r.Header.Get(headerToken); token != "" {
		if run, err = s.consume(token); err == nil {
			defer run.Finish()
			b, err = s.bodies.read(w, r)
		}
	} else if b, err = s.bodies.read(w, r); err == nil {
		defer b.release()
		if run, err = s.table.Acquire(); err == nil {
			defer run.Finish()
		}
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	s.forward(w, r, b, run.Finish)
}

func (s *Server) consume(token string) (*Run, error) {
	t, err := uuid.Parse(token)
	if err != nil {
		return nil, llmserver.ErrToken
	}
	return s.table.Consume(t)
}

// pass passes a request on that takes no slot.
func (s *Server) pass(w http.ResponseWriter, r *http.Request) {
	b, err := s.bodies.read(w, r)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	s.forward(w, r, b, nil)
}

// forward sends a request to the engine and relays its answer. What breaks off at the engine breaks
// off at the ingress in the same way, so that the ingress can act as if it spoke to the engine
// itself; but a connection that the engine had closed while it was idle is none of the ingress's
// business.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, b *body, ending func()) {
	defer b.release()
	resp, err := s.send(r, b.data)
	if errors.Is(err, llmserver.ErrStale) {
		if resp, err = s.send(r, b.data); errors.Is(err, llmserver.ErrNoConnection) || errors.Is(err, llmserver.ErrExhausted) {
			err = llmserver.ErrBroken // the engine may have had the request when it died
		}
	}
	if errors.Is(err, llmserver.ErrNoConnection) || errors.Is(err, llmserver.ErrExhausted) {
		if !s.unreachable.Swap(true) {
			s.config.Log.Warn("no connection to the engine", "error", err)
		}
		s.refuse(w, r, err)
		return
	}
	if s.unreachable.Load() && s.unreachable.Swap(false) {
		s.config.Log.Info("the engine is reached again")
	}
	if err != nil {
		if r.Context().Err() == nil {
			s.config.Log.Warn("the engine did not answer", "error", err)
		}
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close()
	b.release() // nobody sends it again, and an answer may take long
	setReport(w.Header(), s.table.ReportTo(holder(r)))
	relay := streaming.Relay{WriteTimeout: s.config.WriteTimeout, BeforeLastWrite: ending, OmitErrorEvent: true}
	if _, err := relay.Copy(r.Context(), w, resp, nil); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// send sends a request to the engine.
func (s *Server) send(r *http.Request, body []byte) (*http.Response, error) {
	out := &http.Request{
		Method:        r.Method,
		URL:           &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery},
		Header:        make(http.Header, len(r.Header)),
		Body:          http.NoBody,
		ContentLength: int64(len(body)),
	}
	if len(body) > 0 {
		out.Body = io.NopCloser(bytes.NewReader(body))
	}
	streaming.CopyRequestHeader(out.Header, r.Header)
	resp, _, err := s.config.Engine.Do(out.WithContext(r.Context()), llmserver.Token{})
	if err != nil {
		return nil, err
	}
	resp.Request = nil // it would keep the body in memory for the whole answer
	return resp, nil
}

// refuse answers a request that the engine has seen nothing of.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	h := w.Header()
	setReport(h, s.table.ReportTo(holder(r)))
	mark := func(reason string) { h.Set(headerRefused, reason) }
	switch tooLarge, _ := errors.AsType[*http.MaxBytesError](err); {
	case tooLarge != nil:
		writeError(w, http.StatusRequestEntityTooLarge, "invalid_request_error", "request_too_large", "The request body is too large.")
	case errors.Is(err, errSilent):
		writeError(w, http.StatusRequestTimeout, "invalid_request_error", "body_timeout", "The rest of the request body did not arrive in time.")
	case errors.Is(err, errBudget):
		mark(refusedFull) // another agent may have room
		h.Set("Retry-After", "1")
		writeError(w, http.StatusServiceUnavailable, "server_error", "request_memory_exhausted", "The agent holds too many request bytes at the moment.")
	case errors.Is(err, llmserver.ErrExhausted):
		mark(refusedFull) // another agent may have descriptors left, and the engine is not to blame
		h.Set("Retry-After", "1")
		writeError(w, http.StatusServiceUnavailable, "server_error", "server_exhausted", "The agent is out of connections; try again later.")
	case errors.Is(err, llmserver.ErrToken):
		mark(refusedToken)
		writeError(w, http.StatusConflict, "invalid_request_error", "unknown_slot_token",
			"The slot token is not reserved here: it was never, is spent, or has expired.")
	case errors.Is(err, llmserver.ErrFull):
		mark(refusedFull)
		h.Set("Retry-After", "1")
		writeError(w, http.StatusTooManyRequests, "rate_limit_error", "slots_full", "Every slot of the engine is taken.")
	case errors.Is(err, llmserver.ErrDraining):
		mark(refusedDraining)
		writeError(w, http.StatusServiceUnavailable, "server_error", "draining", "The engine is being drained.")
	case errors.Is(err, llmserver.ErrNoConnection):
		mark(refusedEngine)
		writeError(w, http.StatusServiceUnavailable, "server_error", "engine_down", "The engine cannot be reached.")
	default:
		panic(http.ErrAbortHandler) // the body broke off
	}
}
