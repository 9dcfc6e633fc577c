package ingress

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"log/slog"
	"sync/atomic"
	"time"

	"berth/config"
	"berth/ingress/telemetry"
	"berth/internal/body"
	"berth/internal/http1"
)

// A Server is the ingress: a public listener for clients and an optional admin listener for
// operators.
//
// Life cycle: New listens and builds everything, Serve accepts requests until its context ends and
// then drains, Close releases everything. Apply replaces the configuration at any time between New
// and Close.
//
// Requests read immutable values and atomics of a Server; owners and lookups have locks of their
// own. New, Serve and Close belong to one goroutine, the owner's. Apply may run concurrently with
// Serve, on any goroutine, one call at a time.
type Server struct {
	log       *slog.Logger
	telemetry *telemetry.Telemetry
	registry  *registry
	budget    *body.Budget // of the bytes of request bodies in memory
	owners    responseOwners
	lookups   *ownerLookups

	exhaustion *exhaustion
	failures   *failureLog
	connLimit  *connLimit // of the public listener

	draining    atomic.Bool                       // set once, by Serve
	adminKey    atomic.Pointer[[sha256.Size]byte] // hash; nil: no key is required
	certificate atomic.Pointer[tls.Certificate]   // for new connections; nil without TLS
	public      *listener                         // for clients
	admin       *listener                         // nil: no admin listener
}

// New returns a server with configuration c, listening on the configured addresses. Connections
// wait in the kernel's backlog until Serve is called, but probes of replicas start at once. Close
// must be called, even without a call of Serve. After an error everything has been released.
func New(c *config.Config, log *slog.Logger) (*Server, error) {
	t, err := telemetry.TracingFromEnv(log)
	if err != nil {
		return nil, err
	}
	s, err := newServer(c, log, t)
	if err != nil {
		t.Close(log)
	}
	return s, err
}

// newServer is New with the given tracing. The returned server owns t and closes it in Close; after
// an error the caller still owns t.
func newServer(c *config.Config, log *slog.Logger, t *telemetry.Tracing) (*Server, error) {
	if err := checkWireVariable(); err != nil {
		return nil, err
	}
	// The order of construction follows the dependencies: telemetry first, then the registry with
	// its pool, and the listeners last, as nothing may be served before all fields are set.
	s := &Server{log: log, budget: body.NewBudget(bodyBudgetBytes(c))}
	// Gauges are read from the state at scrape time, so no event has to update them.
	s.telemetry = telemetry.New(telemetry.Options{State: s.state, Log: log, Tracing: t, Decisions: c.Admin.Address != ""})
	s.registry = newRegistry(s.telemetry, log)
	s.lookups = newOwnerLookups(&s.owners, s.telemetry.CountLookup)
	s.registry.onNewSet = s.lookups.forgetMisses
	s.failures = newFailureLog(log)
	s.exhaustion = newExhaustion(s.telemetry.CountExhaustion, log)
	s.registry.pool.Events.Exhausted = s.exhaustion.report
	s.registry.pool.Events.StateChanged = newStateLog(log).report
	var err error
	if s.public, err = newListener(c.HTTP.Address, s.routes(), log); err != nil {
		return nil, err
	}
	// The limit is the innermost wrapper: TLS and HTTP treat excess connections like any other, so
	// those are rejected with a response.
	s.connLimit = newConnLimit(s.public.Listener, s.public.connCount, s.telemetry.CountRefusedConnection, s.exhaustion)
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
		// Last, as Apply starts to probe replicas.
		err = s.Apply(c)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Apply replaces the configuration while requests are served. After an error nothing has changed,
// and the old configuration stays in force. No request is aborted and none leaves the queue, except
// those of removed models. Listener addresses and the use of TLS are fixed by New. Apply may block
// on the opening of files and on a reload after a replica's restart, but not on requests.
func (s *Server) Apply(c *config.Config) error {
	err := s.apply(c)
	if err != nil {
		s.ReloadFailed()
	}
	return err
}

// apply does everything fallible before replacing anything. registry.apply is the last step to
// fail, and the first with an effect on requests.A request sees one table, the old or the new one.
func (s *Server) apply(c *config.Config) error {
	// Nothing below changes the server until registry.apply has succeeded.
	cert, err := loadCertificate(c.HTTP.TLS)
	if err != nil {
		return err
	}
	adminKey, err := loadAdminKey(c.Admin)
	if err != nil {
		return err
	}
	logs, err := s.telemetry.OpenLogs(c)
	if err != nil {
		return err
	}
	if err := s.registry.apply(c); err != nil {
		logs.Close()
		return err
	}
	// From here on nothing fails. Misses are forgotten because the new configuration may have more
	// replicas.
	s.telemetry.UseLogs(logs)
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
	s.telemetry.ConfigLoaded()
	return nil
}

// ReloadFailed records a failed reload in the metrics. Apply calls ReloadFailed itself; other
// callers report configurations that could not be read or parsed. Any goroutine may call it.
func (s *Server) ReloadFailed() { s.telemetry.ConfigRejected() }

// Address returns the address of the public listener, with the port assigned by the system if the
// configured one is 0.
func (s *Server) Address() string { return s.public.Addr().String() }

// AdminAddress returns the address of the admin listener, or "" without one.
func (s *Server) AdminAddress() string {
	if s.admin == nil {
		return ""
	}
	return s.admin.Addr().String()
}

// Remaining returns the number of requests that hold a slot, and of those that wait for one. Any
// goroutine may call it.
func (s *Server) Remaining() (running, queued int) {
	for _, replica := range s.registry.allReplicas() {
		running += replica.Usage().Ongoing()
	}
	for _, m := range s.registry.table.Load().models {
		queued += m.router.QueueLength()
	}
	return running, queued
}

// Serve serves until ctx is done and then drains. During the drain delay /readyz responds 503 but
// requests are still served, so load balancers can stop sending. Then Serve closes the public
// listener and waits up to the drain timeout for the remaining requests, queued ones included. The
// admin listener stays open until Close.
//
// Serve blocks until then. The error is that of a failed listener, or nil after a drain, complete
// or not. Serve may be called once.
func (s *Server) Serve(ctx context.Context) error {
	// One place per listener: neither goroutine blocks after Serve has returned.
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
	// Readiness fails from here on; everything else is unchanged during the delay.
	s.draining.Store(true)
	// The settings of the last reload apply; later reloads change nothing about this drain.
	drain := s.registry.table.Load().config.HTTP
	running, queued := s.Remaining()
	s.log.Info("draining", "running", running, "queued", queued, "delay", drain.DrainDelay, "timeout", drain.DrainTimeout,
		"hint", "a second signal ends at once")
	select {
	case err := <-failed:
		return err
	case <-time.After(drain.DrainDelay):
	}
	// ctx has ended, so the drain has a context of its own.
	finish, stop := context.WithTimeout(context.WithoutCancel(ctx), drain.DrainTimeout)
	defer stop()
	if err := s.public.front.Shutdown(finish); err != nil {
		// Close aborts the rest.
		running, queued := s.Remaining()
		s.log.Warn("the drain timeout ended before all requests did", "timeout", drain.DrainTimeout, "running", running, "queued", queued)
	}
	return nil
}

// Close aborts the remaining requests, waits for their handlers and releases all resources. Serve
// must have returned, or never be called.The order matters: the registry and the logs close only
// after the last handler has returned.
func (s *Server) Close() {
	s.public.close()
	if s.admin != nil {
		s.admin.close()
	}
	// Handlers have returned: no request uses the routers or the logs any more.
	s.failures.close()
	s.registry.close()
	s.telemetry.Close()
}
