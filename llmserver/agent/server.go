package agent

import (
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"

	"berth/internal/body"
	"berth/internal/openai"
	"berth/internal/tcp"
	"berth/llmserver"
)

const (
	maxWait       = 10 * time.Minute // upper bound of wait_ms; larger values are clamped
	maxHolderName = 64               // bytes of X-Slot-Holder; a longer name is ignored
)

// Config describes an agent. New copies the Config, so later changes have no effect.
type Config struct {
	Engine       llmserver.Backend // the transport to the engine; the caller closes the backend
	Limit        int               // slots
	Secret       string            // required of control calls; empty: none
	MaxBodyBytes int64             // of one request
	MaxBuffered  int64             // bytes of all request bodies held at once; 0: no bound
	BodyTimeout  time.Duration     // idle timeout of an upload; 0: no bound
	WriteTimeout time.Duration     // how long an ingress may read nothing of a response
	ProbeTimeout time.Duration     // for the engine's health
	Log          *slog.Logger
}

// A Server is the agent of one engine, as an http.Handler. All methods may be called from any
// goroutine. The slot table, the budget of request bodies and engineDown are the only state shared
// by requests; a Server has no goroutine of its own.
//
// The http.Server needs ConnContext, and http1.ResetAborted around the Server: a response cut short
// must not look complete, not even to an HTTP/1.0 client (law 12).
//
// To shut down, call Drain, wait for Drained, and then stop the HTTP server, which still writes the
// last bytes of the last responses.
type Server struct {
	config Config
	table  *Table
	bodies body.Options // bounds of request bodies
	mux    *http.ServeMux

	engineDown atomic.Bool // by the last request; the swap that changes the value logs the change
}

// New returns an agent with all slots free. It does no I/O; the first request or probe connects to
// the engine. Control calls need the secret. All other paths, except /internal/ and those of
// the agent's health and metrics, belong to the engine.
func New(c Config) *Server {
	s := &Server{config: c, table: NewTable(c.Limit), mux: http.NewServeMux()}
	s.bodies = body.Options{MaxBytes: c.MaxBodyBytes, IdleTimeout: c.BodyTimeout, Budget: body.NewBudget(cmp.Or(c.MaxBuffered, math.MaxInt64))}
	s.mux.Handle("POST /internal/slots", s.requireSecret(s.handleReserve))
	s.mux.Handle("DELETE /internal/slots/{token}", s.requireSecret(s.handleRelease))
	s.mux.Handle("GET /internal/slots", s.requireSecret(s.handleCounts))
	s.mux.HandleFunc("/internal/", func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, http.StatusNotFound, openai.TypeInvalidRequest, "unknown_url", "The agent has no such path.")
	})
	s.mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	s.mux.HandleFunc("GET /readyz", s.handleHealth)
	s.mux.HandleFunc("GET /health", s.handleHealth)
	s.mux.Handle("GET /metrics", newMetrics(s.table, s.bodies.Budget))
	s.mux.HandleFunc("/", s.handleRequest)
	return s
}

// ServeHTTP adds a report to every response, refusals and errors included. Handlers that change the
// counts, or wait, set a current report before writing: the ingress takes the one with the highest
// Seq for the truth. ServeHTTP blocks until the response is complete, and panics with
// http.ErrAbortHandler to break the connection.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setReportHeader(w.Header(), s.table.ReportTo(holderName(r)))
	s.mux.ServeHTTP(w, r)
}

// Drain stops admissions and ends all queued reservations. Reserved slots may still be consumed,
// and running requests continue. Drain does not block; a second call does nothing.
func (s *Server) Drain() { s.table.Drain() }

// Drained returns a channel closed after Drain, as soon as nothing is reserved or running. Without
// Drain the channel stays open.
func (s *Server) Drained() <-chan struct{} { return s.table.Drained() }

// Read returns a snapshot of the slots: all counts are of the same moment.
func (s *Server) Read() Snapshot { return s.table.Read() }

// requireSecret rejects control calls without the configured secret, before the body is read. The
// comparison takes constant time, so the secret cannot be guessed byte by byte. With an empty
// secret only calls without one pass.
func (s *Server) requireSecret(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get(headerSecret)), []byte(s.config.Secret)) != 1 {
			writeError(w, http.StatusForbidden, openai.TypeInvalidRequest, "wrong_slot_secret",
				"The slot secret is missing or wrong.")
			return
		}
		next(w, r)
	})
}

// holderName returns the caller's name for itself, or "". Names separate the shares of well-behaved
// ingresses; they are no authentication, and no decision depends on them.
func holderName(r *http.Request) string {
	if name := r.Header.Get(headerHolder); len(name) <= maxHolderName {
		return name
	}
	return ""
}

// handleReserve handles POST /internal/slots. It blocks for at most wait_ms while the reservation
// is queued, and ends the wait when the caller disconnects.
//
// A refused reservation is a 200 with "accepted":false, since the call itself succeeded. Errors are
// 400 for an invalid body and 409 for a spent token (law 7). A repeated call gives the same result,
// so an ingress may repeat a call after a lost reply. If the caller is gone, no slot stays behind:
// the table has withdrawn the reservation, or the slot is released here (law 1).
func (s *Server) handleReserve(w http.ResponseWriter, r *http.Request) {
	var call reserveRequest
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4<<10))
	if err == nil {
		err = json.Unmarshal(body, &call)
	}
	if err != nil || call.Token == uuid.Nil || call.lease() <= 0 || call.WaitMS < 0 {
		writeError(w, http.StatusBadRequest, openai.TypeInvalidRequest, "invalid_reservation",
			`A reservation is {"token":"<uuid>","lease_s":3,"wait_ms":0} with a positive lease.`)
		return
	}
	wait := time.Duration(min(call.WaitMS, maxWait.Milliseconds())) * time.Millisecond
	_, err = s.table.ReserveFor(r.Context(), holderName(r), call.Token, call.lease(), wait)
	if err == nil && wait > 0 && disconnected(r) {
		s.table.Release(call.Token) // passes the slot to the next in the queue
		panic(http.ErrAbortHandler)
	}
	// Header and body carry one report, taken after the reservation, with the new slot counted.
	report := s.table.ReportTo(holderName(r))
	setReportHeader(w.Header(), report)
	reply, accepted := encodeReport(report), err == nil
	reply.Accepted = &accepted
	switch {
	case errors.Is(err, llmserver.ErrToken):
		s.writeRefusal(w, r, err)
		return
	case errors.Is(err, llmserver.ErrFull):
		w.Header().Set(headerRefused, refusedFull)
	case errors.Is(err, llmserver.ErrDraining):
		w.Header().Set(headerRefused, refusedDraining)
	case err != nil:
		panic(http.ErrAbortHandler) // the caller is gone
	}
	writeJSON(w, http.StatusOK, reply)
}

// connKey is the context key of a call's net.Conn.
type connKey struct{}

// ConnContext is for the ConnContext field of the http.Server of an agent, and gives handlers
// access to the connection of a call. Without ConnContext a disconnect is noticed only by the
// context.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// disconnected reports whether the caller has closed the connection, without blocking. The context
// of the call ends later. The other connections of a killed ingress may free slots in between, and
// without this check those slots would go to the dead ingress's own queued reservations.
func disconnected(r *http.Request) bool {
	c, ok := r.Context().Value(connKey{}).(syscall.Conn)
	return ok && tcp.PeerClosed(c)
}

// handleRelease handles DELETE /internal/slots/{token}. The call is idempotent and does not block.
// An unknown token is no error and is spent from now on, so that a cancel overtaking its
// reservation wins (law 7). A token already consumed is not affected: the running request ends by
// itself.
func (s *Server) handleRelease(w http.ResponseWriter, r *http.Request) {
	token, err := uuid.Parse(r.PathValue("token"))
	if err != nil {
		writeError(w, http.StatusBadRequest, openai.TypeInvalidRequest, "invalid_token", "The token is not a UUID.")
		return
	}
	s.table.Release(token)
	report := s.table.ReportTo(holderName(r))
	setReportHeader(w.Header(), report)
	writeJSON(w, http.StatusOK, encodeReport(report))
}

// handleCounts handles GET /internal/slots. Report and counts are of the same moment.
func (s *Server) handleCounts(w http.ResponseWriter, r *http.Request) {
	snapshot := s.table.ReadFor(holderName(r))
	reply := encodeReport(snapshot.Report)
	reply.Reserved, reply.Running = &snapshot.Reserved, &snapshot.Running
	setReportHeader(w.Header(), snapshot.Report)
	writeJSON(w, http.StatusOK, reply)
}

// handleHealth returns the engine's health, and 503 while draining. It blocks for one probe of the
// engine, at most ProbeTimeout. A probe for which this process lacks the resources is no evidence
// about the engine and counts as healthy (law 21).
func (s *Server) handleHealth(w http.ResponseWriter, r *http.Request) {
	if s.table.Report().Draining {
		http.Error(w, "draining", http.StatusServiceUnavailable)
		return
	}
	ctx, stop := context.WithTimeout(r.Context(), s.config.ProbeTimeout)
	defer stop()
	if _, err := s.config.Engine.Probe(ctx); err != nil && !errors.Is(err, llmserver.ErrExhausted) {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	io.WriteString(w, "ok\n")
}
