package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth/config"
	"berth/ingress"
	"berth/internal/http1"
	"berth/internal/tcp"
	"berth/llmserver"
	"berth/llmserver/agent"
	"berth/llmserver/simulated"
)

// secretVariable is the environment variable with the secret required for control calls to an
// agent.
const secretVariable = "BERTH_SLOT_SECRET"

// agentFlags are the flags of berth llmserver.
type agentFlags struct {
	engine, address, id  string
	healthCheckPath      string
	simulated            bool
	limit                int
	maxBody, maxBuffered int64
	bodyTimeout          time.Duration
	sendTimeout          time.Duration
	drainTimeout         time.Duration
	logs                 logFlags
}

func llmserverCommand() *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "llmserver (--engine URL | --simulated) --max-ongoing-requests N",
		Short: "Stand in front of one engine and count its slots, so that several ingresses can share it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := f.logs.newLogger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return f.run(cmd.OutOrStdout(), log)
		},
	}
	cmd.Flags().StringVar(&f.engine, "engine", "", "URL of the engine")
	cmd.Flags().BoolVar(&f.simulated, "simulated", false, "start a simulated engine in place of a real one")
	cmd.Flags().StringVar(&f.healthCheckPath, "health-check-path", config.DefaultHealthCheckPath, "path of the engine's health check, with a query or without")
	cmd.Flags().StringVar(&f.address, "address", "127.0.0.1:8100", "HOST:PORT to listen on; beyond loopback "+secretVariable+" must be set")
	cmd.Flags().StringVar(&f.id, "id", "llmserver", "name of the engine in logs, and of a simulated engine")
	cmd.Flags().IntVar(&f.limit, "max-ongoing-requests", 0, "slots: requests that the engine serves at once")
	cmd.Flags().Int64Var(&f.maxBody, "max-body-bytes", 64<<20, "limit of a request body")
	cmd.Flags().Int64Var(&f.maxBuffered, "max-buffered-bytes", ingress.DefaultBufferedBytes(), "limit of all request bodies in memory, by default a quarter of the memory; 0 for no limit")
	cmd.Flags().DurationVar(&f.bodyTimeout, "body-timeout", 30*time.Second, "idle timeout of a request upload; 0 for none")
	cmd.Flags().DurationVar(&f.sendTimeout, "send-timeout", 2*time.Minute, "timeout of a write to an ingress or to the engine that makes no progress")
	cmd.Flags().DurationVar(&f.drainTimeout, "drain-timeout", 600*time.Second, "time for requests to finish after SIGTERM")
	f.logs.register(cmd)
	cmd.MarkFlagRequired("max-ongoing-requests")
	cmd.MarkFlagsOneRequired("engine", "simulated")
	cmd.MarkFlagsMutuallyExclusive("engine", "simulated")
	return cmd
}

func (f agentFlags) run(out io.Writer, log *slog.Logger) error {
	secret := os.Getenv(secretVariable)
	switch {
	case f.limit < 1 || f.limit > llmserver.MaxLimit:
		return fmt.Errorf("--max-ongoing-requests must be between 1 and %d", llmserver.MaxLimit)
	case secret == "" && !onLoopback(f.address):
		return fmt.Errorf("%s is reachable from other machines; set %s here and at the ingresses, or listen on loopback", f.address, secretVariable)
	case f.sendTimeout <= 0:
		return errors.New("--send-timeout must be above 0")
	case !config.IsHealthCheckPath(f.healthCheckPath):
		return errors.New("--health-check-path must be a path like /health or /ping?full=1")
	}
	if f.simulated {
		engine, err := simulated.Listen("127.0.0.1:0", simulated.Config{ID: f.id})
		if err != nil {
			return err
		}
		defer engine.Close()
		f.engine = engine.URL()
	}
	engine, err := llmserver.DialHTTP(llmserver.Endpoint{ID: f.id, URL: f.engine, ProbePath: f.healthCheckPath, ConnectTimeout: 5 * time.Second, SendTimeout: f.sendTimeout})
	if err != nil {
		return err
	}
	defer engine.Close()
	server := agent.New(agent.Config{
		Engine:       engine,
		Limit:        f.limit,
		Secret:       secret,
		MaxBodyBytes: f.maxBody,
		MaxBuffered:  f.maxBuffered,
		BodyTimeout:  f.bodyTimeout,
		WriteTimeout: f.sendTimeout,
		ProbeTimeout: 30 * time.Second, // a probing ingress times out first
		Log:          log.With("agent", f.id),
	})
	listener, err := f.listen()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "berth llmserver http://%s, %d slots, engine %s\n", listener.Addr(), f.limit, f.engine)
	stop := make(chan os.Signal, 2)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	return f.serve(server, listener, stop, log)
}

// listen opens the listener for ingresses and sets the send timeout of accepted connections.
func (f agentFlags) listen() (net.Listener, error) {
	l, err := tcp.Listen(f.address)
	if err != nil {
		return nil, err
	}
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err == nil {
		err = tcp.SetSendTimeout(raw, f.sendTimeout)
	}
	return l, err
}

// serve serves until the first signal on stop, then drains: it rejects new requests and returns
// when all others have finished or the drain timeout has expired. A second signal ends the process.
func (f agentFlags) serve(server *agent.Server, listener net.Listener, stop <-chan os.Signal, log *slog.Logger) error {
	tuneGC()
	serving, end := context.WithCancel(context.Background())
	var background sync.WaitGroup
	background.Go(func() { tuneGOMAXPROCS(serving) })
	defer background.Wait()
	defer end()
	h := &http.Server{
		Handler:           http1.ResetAborted(server),
		ConnContext:       agent.ConnContext,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       5 * time.Minute,
		MaxHeaderBytes:    http1.ReadHeaderBytes,
		Protocols:         new(http.Protocols),
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	h.Protocols.SetHTTP1(true)
	h.Protocols.SetUnencryptedHTTP2(true)
	failed := make(chan error, 1)
	go func() { failed <- h.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-stop:
	}
	left := func() (running, queued int) {
		now := server.Read()
		return now.Reserved + now.Running, now.Waiting
	}
	running, queued := left()
	log.Info("draining", "running", running, "queued", queued, "timeout", f.drainTimeout, "hint", "a second signal ends at once")
	printRemaining(os.Stderr, left)
	server.Drain()
	go exitOnSignal(stop, left, log)
	ctx, cancel := context.WithTimeout(context.Background(), f.drainTimeout)
	defer cancel()
	select {
	case <-server.Drained():
	case <-ctx.Done():
		running, queued := left()
		log.Warn("drain timeout expired, closing the remaining requests", "timeout", f.drainTimeout, "running", running, "queued", queued)
	}
	h.Shutdown(ctx) // writes the last bytes of the last responses
	return h.Close()
}

// onLoopback reports whether an address is reachable from this machine only.
func onLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
