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

// Config describes an agent.
type Config struct {
	Engine       llmserver.Backend // the transport to the engine
	Limit        int               // slots
	Secret       string            // required of control calls; empty: none
	MaxBodyBytes int64             // of one request
	MaxBuffered  int64             // bytes of all request bodies held at once; 0: no bound
	BodyTimeout  time.Duration     // idle timeout of an upload; 0: no bound
	WriteTimeout time.Duration     // how long an ingress may read nothing of a response
	ProbeTimeout time.Duration     // for the engine's health
	Log          *slog.Logger
}

// A Server is the agent of one engine. It is an http.Handler. To shut down, call Drain, wait for
// Drained, and then stop the HTTP server.
type Server struct {
	config Config
	table  *Table
	bodies body.Options // bounds of request bodies
	mux    *http.ServeMux

	engineDown atomic.Bool // by the last request, so that each outage is logged twice: at its start and end
}

// New returns an agent.
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

// ServeHTTP adds a report to every response. Handlers that change the counts, or wait, replace it
// by a current one before they write.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setReportHeader(w.Header(), s.table.ReportTo(holderName(r)))
	s.mux.ServeHTTP(w, r)
}

// Drain stops admissions.
func (s *Server) Drain() { s.table.Drain() }

// Drained returns a channel that is closed when the agent is draining and nothing is ongoing.
func (s *Server) Drained() <-chan struct{} { return s.table.Drained() }

// Read returns a snapshot of the slots.
func (s *Server) Read() Snapshot { return s.table.Read() }

// requireSecret rejects control calls without the configured secret. The comparison takes constant
// time, so that the secret cannot be guessed byte by byte.
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

// holderName returns the name by which the caller identifies itself, or "".
func holderName(r *http.Request) string {
	if name := r.Header.Get(headerHolder); len(name) <= maxHolderName {
		return name
	}
	return ""
}

// handleReserve handles POST /internal/slots. It blocks while the reservation is queued.
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

type connKey struct{}

// ConnContext is for the ConnContext field of the http.Server that serves an agent. It gives
// handlers access to the connection of a call.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// disconnected reports whether the caller has closed its connection. The context of a call ends
// later than that. When an ingress is killed, its other connections may free slots before, and
// without this check the slots would go to the dead ingress's own queued reservations.
func disconnected(r *http.Request) bool {
	c, ok := r.Context().Value(connKey{}).(syscall.Conn)
	return ok && tcp.PeerClosed(c)
}

// handleRelease handles DELETE /internal/slots/{token}.
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

// handleCounts handles GET /internal/slots.
func (s *Server) handleCounts(w http.ResponseWriter, r *http.Request) {
	snapshot := s.table.ReadFor(holderName(r))
	reply := encodeReport(snapshot.Report)
	reply.Reserved, reply.Running = &snapshot.Reserved, &snapshot.Running
	setReportHeader(w.Header(), snapshot.Report)
	writeJSON(w, http.StatusOK, reply)
}

// handleHealth returns the engine's health, and 503 while draining. A probe that this process lacks
// the resources for is no evidence about the engine and counts as healthy.
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
