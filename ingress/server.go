package ingress

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/config"
	"berth/internal/body"
	"berth/internal/http1"
)

// A Server is the ingress: a public listener for clients and an optional admin listener for
// operators.
//
// Requests read only immutable values and atomics of it. New, Apply, Serve and Close belong to the
// goroutine that owns the Server; Apply may also run while Serve does, from any goroutine, one call
// at a time.
type Server struct {
	log            *slog.Logger
	metrics        *metrics
	metricsHandler http.Handler // of GET /metrics, on both listeners
	registry       *registry
	budget         *body.Budget // of the bytes of request bodies in memory
	owners         responseOwners
	lookups        *ownerLookups
	decisionLog    decisionLog // off until a configuration names a file
	access         accessLog   // the same
	tracing        *tracing    // nil: off

	exhaustion *exhaustion
	connLimit  *connLimit // of the public listener

	draining    atomic.Bool                       // set once, by Serve
	adminKey    atomic.Pointer[[sha256.Size]byte] // hash; nil: no key is required
	certificate atomic.Pointer[tls.Certificate]   // for new connections; nil without TLS
	public      *listener                         // for clients
	admin       *listener                         // nil: no admin listener
}

// New returns a server with configuration c that listens on the configured addresses. Connections wait
// in the kernel's backlog until Serve is called. Close must be called, also if Serve never is. If New
// returns an error, it has released everything.
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

// newServer is New with a given tracing. Close of the returned server closes t; on an error the
// caller still owns it.
func newServer(c *config.Config, log *slog.Logger, t *tracing) (*Server, error) {
	if err := checkWireVariable(); err != nil {
		return nil, err
	}
	s := &Server{
		tracing: t,
		log:     log,
		metrics: newMetrics(),
		budget:  body.NewBudget(bodyBudgetBytes(c)),
	}
	s.registry = newRegistry(s.metrics, log)
	if c.Admin.Address != "" {
		s.registry.decisions = new(decisions)
	}
	// Gauges are read from the state at scrape time; nothing has to keep them up to date.
	s.metrics.registry.MustRegister(readings{s.registry, s.budget, &s.draining})
	s.metricsHandler = s.metrics.handler()
	s.metrics.registry.MustRegister(prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: "berth_buffered_bytes_limit", Help: "Maximum bytes of request bodies held in memory."},
		func() float64 { return float64(s.budget.Limit()) }))
	s.lookups = newOwnerLookups(&s.owners, s.metrics.registry)
	s.exhaustion = newExhaustion(s.metrics.registry, log)
	s.registry.pool.Events.Exhausted = s.exhaustion.report
	var err error
	if s.public, err = newListener(c.HTTP.Address, s.routes(), log); err != nil {
		return nil, err
	}
	// The limit is the innermost wrapper: TLS and HTTP see excess connections like any other, so that
	// these are rejected with a response.
	s.connLimit = newConnLimit(s.public.Listener, s.public.connCount, s.metrics.registry, s.exhaustion)
	s.public.Listener = s.connLimit
	switch {
	case c.HTTP.TLS != (config.TLS{}):
		enableTLS(s.public.server, s.certificate.Load)
	case PlainWire():
		log.Info("connections are served by net/http alone, and GOMAXPROCS is left to Go", wireVariable, plainWire)
	default:
		s.public.front = http1.NewServer(s.public.server)
	}
	if c.Admin.Address != "" {
		s.admin, err = newListener(c.Admin.Address, s.adminRoutes(), log)
	}
	if err == nil {
		err = s.Apply(c) // last, as it starts to probe replicas
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Apply replaces the configuration while requests are served. If it returns an error, nothing has
// changed and the old configuration stays in force. No request is aborted and none leaves the queue,
// except those of removed models. Listener addresses, and whether a listener speaks TLS, are fixed by
// New.
func (s *Server) Apply(c *config.Config) error {
	err := s.apply(c)
	if err != nil {
		s.ReloadFailed()
	}
	return err
}

// apply opens and builds everything that can fail before it replaces anything. registry.apply is the
// last step that can fail, and the first that has an effect on requests.
func (s *Server) apply(c *config.Config) error {
	cert, err := loadCertificate(c.HTTP.TLS)
	if err != nil {
		return err
	}
	adminKey, err := loadAdminKey(c.Admin)
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
	// From here on nothing fails.
	s.access.use(access, s.metrics, s.log)
	s.decisionLog.use(decisions, veil, s.metrics, s.log)
	s.lookups.forgetMisses()
	s.budget.SetLimit(bodyBudgetBytes(c))
	if limit := bodyBudgetBytes(c); limit < c.HTTP.MaxBodyBytes {
		s.log.Warn("memory leaves less for request bodies than http.max_body_bytes allows for one; larger ones get 503", "bytes", limit)
	}
	s.connLimit.configure(c.HTTP.MaxConnections, s.log)
	s.adminKey.Store(adminKey)
	s.public.setSendTimeout(c.HTTP.SendTimeout)
	s.admin.setSendTimeout(c.HTTP.SendTimeout)
	s.setCertificate(cert)
	s.metrics.reloaded.Set(1)
	s.metrics.reloadTime.SetToCurrentTime()
	return nil
}

// ReloadFailed records in the metrics that the last configuration could not be loaded. Apply calls
// it; callers need it only for a configuration that they could not read.
func (s *Server) ReloadFailed() { s.metrics.reloaded.Set(0) }

// Address returns the address of the public listener.
func (s *Server) Address() string { return s.public.Addr().String() }

// AdminAddress returns the address of the admin listener, or "" without one.
func (s *Server) AdminAddress() string {
	if s.admin == nil {
		return ""
	}
	return s.admin.Addr().String()
}

// Serve serves until ctx is done and then drains. For the drain delay it reports not ready but
// serves on, so that load balancers can stop sending. Then it closes the public listener and waits
// up to the drain timeout for requests, queued ones included. It returns the error of a listener
// that failed, else nil. It may be called once.
func (s *Server) Serve(ctx context.Context) error {
	failed := make(chan error, 2) // one per listener: neither blocks after Serve has returned
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

// Close aborts the requests that are left, waits for their handlers and releases all resources.
// Serve must have returned, or never be called. The order matters: the registry and the logs close
// only after the last handler has returned.
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
