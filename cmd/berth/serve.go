package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth/config"
	"berth/ingress"
)

// watchInterval is the time between two reads of the configuration file.
const watchInterval = 5 * time.Second

func serveCommand() *cobra.Command {
	var path, address string
	var logs logFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve; without a configuration, a demo model on three simulated replicas",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logs.newLogger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return serve(path, address, cmd.OutOrStdout(), log)
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "the YAML file that describes the models")
	cmd.Flags().StringVar(&address, "address", "", "HOST:PORT to serve clients on, in place of the configured one")
	logs.register(cmd)
	return cmd
}

func serve(path, address string, out io.Writer, log *slog.Logger) error {
	c, err := loadConfig(path, log)
	if err != nil {
		return err
	}
	first := *c
	if address != "" {
		first.HTTP.Address = address
	}
	tuneGC()
	stop, reload := subscribeSignals()
	server, err := ingress.New(&first, log)
	if err != nil {
		return err
	}
	printBanner(out, c, server)
	return runServer(server, path, c, stop, reload, log)
}

// runServer serves until the first signal on stop, then drains, and returns once all of its
// goroutines have ended. If path is not empty, the configuration file is watched until the drain is
// over, so logs can be rotated and keys revoked during a drain.
func runServer(server *ingress.Server, path string, c *config.Config, stop, reload <-chan os.Signal, log *slog.Logger) error {
	ctx, drain := context.WithCancel(context.Background())
	watching, stopWatching := context.WithCancel(context.Background())
	var background sync.WaitGroup
	background.Go(func() { cancelOnSignal(ctx, stop, drain, server.Remaining, os.Stderr, log) })
	background.Go(func() { tuneGOMAXPROCS(ctx) })
	if path != "" {
		r := &reloader{server, c, c, log}
		background.Go(func() { r.watch(watching, path, reload) })
	}
	err := server.Serve(ctx)
	drain()
	stopWatching()
	background.Wait()
	server.Close()
	if err == nil { // otherwise the error is the last line
		log.Info("stopped")
	}
	return err
}

// loadConfig loads the file at path, or returns the embedded configuration if path is empty.
func loadConfig(path string, log *slog.Logger) (*config.Config, error) {
	if path == "" {
		return config.Default(), nil
	}
	c, warnings, err := config.Load(path, checks)
	logWarnings(log, warnings)
	return c, err
}

func logWarnings(log *slog.Logger, warnings []config.Problem) {
	for _, w := range warnings {
		log.Warn("configuration warning", "problem", w.String())
	}
}

// subscribeSignals returns the signals that end the process and those that reload the
// configuration.
func subscribeSignals() (stop, reload chan os.Signal) {
	stop, reload = make(chan os.Signal, 2), make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	signal.Notify(reload, syscall.SIGHUP)
	return stop, reload
}

// A reloader applies each new configuration to a server. One goroutine uses it.
type reloader struct {
	server  *ingress.Server
	first   *config.Config // at start, which decides the keys that need a restart
	current *config.Config // applied last
	log     *slog.Logger
}

// watch applies each change of the file at path until ctx ends.
func (r *reloader) watch(ctx context.Context, path string, reload <-chan os.Signal) {
	w := config.Watcher{
		Path:    path,
		Checks:  checks,
		Every:   watchInterval,
		Signals: reload,
		Running: r.first,
		Reload:  r.apply,
	}
	w.Run(ctx)
}

// apply applies the result of a reload and logs what has changed. If err is not nil or c cannot be
// applied, the server keeps the current configuration.
func (r *reloader) apply(c *config.Config, warnings []config.Problem, err error) {
	logWarnings(r.log, warnings)
	if err == nil {
		if keys := config.RestartKeys(r.first, c); len(keys) > 0 {
			r.log.Warn("some changes take effect only after a restart", "keys", strings.Join(keys, ", "))
		}
		err = r.server.Apply(c)
	} else {
		r.server.ReloadFailed()
	}
	if err != nil {
		r.log.Error("configuration reload failed, keeping the running configuration", "error", err)
		return
	}
	r.log.Info("configuration reloaded", "changes", describeChanges(config.Diff(r.current, c)))
	r.current = c
}

// maxChanges bounds the changes that one line of the log describes.
const maxChanges = 20

// describeChanges returns the changes between two configurations as one text.
func describeChanges(changes []string) string {
	switch n := len(changes); {
	case n == 0:
		return "nothing changed"
	case n > maxChanges:
		return fmt.Sprintf("%s; and %d more", strings.Join(changes[:maxChanges], "; "), n-maxChanges)
	}
	return strings.Join(changes, "; ")
}

// printBanner prints the addresses, the models and an example request.
func printBanner(out io.Writer, c *config.Config, server *ingress.Server) {
	var models []string
	for _, m := range c.Models {
		models = append(models, m.ID)
	}
	scheme := "http"
	if c.HTTP.TLS != (config.TLS{}) {
		scheme = "https"
	}
	fmt.Fprintf(out, "berth serves %s://%s/v1\n", scheme, server.Address())
	if admin := server.AdminAddress(); admin != "" {
		fmt.Fprintf(out, "admin   http://%s\n        /internal/replicas, /internal/slots, /internal/decisions, /metrics\n", admin)
	}
	fmt.Fprintf(out, "models  %s\n\n", strings.Join(models, ", "))
	fmt.Fprintf(out, "curl -N %s://%s/v1/chat/completions -H 'Content-Type: application/json' \\\n"+
		"  -d '{\"model\": %q, \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n", scheme, server.Address(), c.Models[0].ID)
}
