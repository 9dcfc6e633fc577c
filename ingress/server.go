package ingress

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/config"
	"berth/internal/body"
	"berth/internal/http1"
	"berth/internal/tcp"
)

const (
	// headerTimeout bounds how long a client may take over a request's head.
	headerTimeout = 10 * time.Second
	// keepAlive is above the 300 s for which load tools keep idle connections, so that they are the ones to close.
	keepAlive = 330 * time.Second
)

// Server is the ingress: a public listener for clients, and one for operators.
type Server struct {
	log            *slog.Logger
	metrics        *metrics
	metricsHandler http.Handler
	registry       *registry
	budget         *body.Budget
	holders        holders
	lookups        *lookups
	decisionLog    decisionLog
	access         accessLog
	tracing        *tracing // nil: none

	exhaustion *exhaustion
	connLimit  *connLimit // of the public listener

	draining    atomic.Bool
	adminKey    atomic.Pointer[[sha256.Size]byte] // nil: none is asked for
	certificate atomic.Pointer[tls.Certificate]   // shown to new connections; nil without TLS
	public      *listener
	admin       *listener // nil if there is none
}

// New makes a server that goes by c and listens where it says. Close must be
// called, also if Serve never is.
func New(c *config.Config, log *slog.Logger) (*Server, error) {
	t, err := tracingByEnvironment(log)
	if err != nil {
		return nil, err
	}
	s, err := newServer(c, log, t)
	if err != nil {
		t.close(log)
	}
	return s, err
}

// newServer is New with spans made by t, which is the server's if there is no error.
func newServer(c *config.Config, log *slog.Logger, t *tracing) (*Server, error) {
	if err := checkWire(); err != nil {
		return nil, err
	}
	s := &Server{
		tracing: t,
		log:     log,
		metrics: newMetrics(),
		budget:  body.NewBudget(bufferedBytes(c)),
	}
	s.registry = newRegistry(s.metrics, log)
	if c.Admin.Address != "" {
		s.registry.decisions = new(decisions)
	}
	s.metrics.registry.MustRegister(readings{s.registry, s.budget, &s.draining})
	s.metricsHandler = s.metrics.handler()
	s.metrics.registry.MustRegister(prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: "berth_buffered_bytes_limit", Help: "How many bytes of request bodies may be held in memory."},
		func() float64 { return float64(s.budget.Limit()) }))
	s.lookups = newLookups(s.metrics.registry)
	s.exhaustion = newExhaustion(s.metrics.registry, log)
	s.registry.pool.Events.Exhausted = s.exhaustion.report
	var err error
	if s.public, err = listen(c.HTTP.Address, s.routes(), log); err != nil {
		return nil, err
	}
	s.connLimit = newConnLimit(s.public.Listener, s.public.open, s.metrics.registry, s.exhaustion)
	s.public.Listener = s.connLimit
	switch {
	case c.HTTP.TLS != (config.TLS{}):
		s.public.encrypt(s.certificate.Load)
	case PlainWire():
		log.Info("connections are served by net/http alone, and GOMAXPROCS is left to Go", wireVariable, plainWire)
	default:
		s.public.front = http1.NewServer(s.public.server)
	}
	if c.Admin.Address != "" {
		s.admin, err = listen(c.Admin.Address, s.adminRoutes(), log)
	}
	if err == nil {
		err = s.Apply(c)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Apply takes over a configuration while requests are served. On an error
// nothing has changed. Addresses stay what they were.
func (s *Server) Apply(c *config.Config) error {
	err := s.apply(c)
	if err != nil {
		s.Rejected()
	}
	return err
}

func (s *Server) apply(c *config.Config) error {
	cert, err := loadCertificate(c.HTTP.TLS)
	if err != nil {
		return err
	}
	adminKey, err := adminKeyOf(c.Admin)
	if err != nil {
		return err
	}
	access, err := openAccessLog(c.AccessLog)
	if err != nil {
		return fmt.Errorf("the access log: %w", err)
	}
	decisions, veil, err := s.decisionLog.open(c.DecisionLog)
	if err == nil {
		err = s.registry.apply(c)
	}
	if err != nil {
		for _, out := range []io.Closer{access, decisions} {
			if out != nil {
				out.Close()
			}
		}
		return err
	}
	s.access.use(access, s.metrics, s.log)
	s.decisionLog.use(decisions, veil, s.metrics, s.log)
	s.lookups.forget()
	s.budget.SetLimit(bufferedBytes(c))
	if limit := bufferedBytes(c); limit < c.HTTP.MaxBodyBytes {
		s.log.Warn("memory leaves less for request bodies than http.max_body_bytes allows for one; larger ones get 503", "bytes", limit)
	}
	s.connLimit.configure(c.HTTP.MaxConnections, s.log)
	s.adminKey.Store(adminKey)
	s.public.wait(c.HTTP.SendTimeout)
	s.admin.wait(c.HTTP.SendTimeout)
	s.show(cert)
	s.metrics.reloaded.Set(1)
	s.metrics.reloadTime.SetToCurrentTime()
	return nil
}

// Rejected records that a configuration could not be loaded.
func (s *Server) Rejected() { s.metrics.reloaded.Set(0) }

// Address is where clients are served, AdminAddress where operators are; empty if nowhere.
func (s *Server) Address() string { return s.public.Addr().String() }

func (s *Server) AdminAddress() string {
	if s.admin == nil {
		return ""
	}
	return s.admin.Addr().String()
}

// Serve serves until ctx ends, and then drains: it calls itself unready but serves on for the drain
// delay, then accepts nothing more and lets requests finish, waiting ones included, for the drain
// timeout. The error is that of a listener that failed.
func (s *Server) Serve(ctx context.Context) error {
	failed := make(chan error, 2)
	s.public.serve(failed)
	if s.admin != nil {
		s.admin.serve(failed)
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	s.draining.Store(true)
	drain := s.registry.table.Load().config.HTTP
	s.log.Info("draining", "delay", drain.DrainDelay, "timeout", drain.DrainTimeout)
	select {
	case err := <-failed:
		return err
	case <-time.After(drain.DrainDelay):
	}
	finish, stop := context.WithTimeout(context.WithoutCancel(ctx), drain.DrainTimeout)
	defer stop()
	if err := s.public.front.Shutdown(finish); err != nil {
		s.log.Warn("the drain timeout ended before all requests did", "timeout", drain.DrainTimeout)
	}
	return nil
}

// Close cuts what is still under way and lets go of everything. Serve must have returned, or never be called.
func (s *Server) Close() {
	s.public.close()
	if s.admin != nil {
		s.admin.close()
	}
	s.registry.close()
	s.decisionLog.close()
	s.access.close()
	s.tracing.close(s.log)
}

// listener is an HTTP server on its own address.
type listener struct {
	net.Listener
	socket   syscall.RawConn // that it accepts from
	server   *http.Server
	front    server         // to begin with: the server, or what stands before it
	serving  sync.WaitGroup // the accepting goroutine
	conns    sync.WaitGroup // begun by it
	tracked  atomic.Int64   // the same, as a number
	requests sync.WaitGroup // begun by connections
}

// server is what is wanted of an http.Server.
type server interface {
	Serve(net.Listener) error
	Shutdown(context.Context) error
	Close() error
}

func listen(address string, h http.Handler, log *slog.Logger) (*listener, error) {
	ln, err := tcp.Listen(address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	l := &listener{Listener: ln}
	if l.socket, err = ln.(*net.TCPListener).SyscallConn(); err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	l.server = &http.Server{
		Handler: http1.ResetAborted(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			l.requests.Add(1)
			defer l.requests.Done()
			if !refuseSurplus(w, r) {
				h.ServeHTTP(w, r)
			}
		})),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       keepAlive,
		MaxHeaderBytes:    http1.ReadHeaderBytes,
		Protocols:         new(http.Protocols),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 1000},
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnState:         l.track,
		ConnContext:       markSurplus,
	}
	l.server.Protocols.SetHTTP1(true)
	l.server.Protocols.SetUnencryptedHTTP2(true)
	l.front = l.server
	return l, nil
}

// wait has the kernel wait, on connections that are accepted from now on, for clients that read
// nothing for a while. l may be nil.
func (l *listener) wait(timeout time.Duration) {
	if l != nil {
		_ = tcp.SetSendTimeout(l.socket, timeout) // fails on a closed listener only
	}
}

func (l *listener) serve(failed chan<- error) {
	l.serving.Go(func() {
		serve := l.front.Serve
		if l.server.TLSConfig != nil {
			serve = func(ln net.Listener) error { return l.server.ServeTLS(ln, "", "") }
		}
		if err := serve(l.Listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("listening on %s: %w", l.Addr(), err)
		}
	})
}

func (l *listener) track(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		l.conns.Add(1)
		l.tracked.Add(1)
	case http.StateClosed, http.StateHijacked:
		l.conns.Done()
		l.tracked.Add(-1)
	}
}

// open returns the number of open connections.
func (l *listener) open() int {
	n := int(l.tracked.Load())
	if plain, ok := l.front.(*http1.Server); ok {
		n += plain.Connections()
	}
	return n
}

// close cuts every connection and waits for the handlers to notice. Each of the
// three waits is over only when nothing more can join the next.
func (l *listener) close() {
	l.front.Close()
	l.Listener.Close()
	l.serving.Wait()
	l.front.Close() // a connection accepted meanwhile
	l.conns.Wait()
	l.requests.Wait()
}
