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

// watchEvery is how often the content of the configuration is looked at.
const watchEvery = 5 * time.Second

func serveCommand() *cobra.Command {
	var path, address string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve; without a configuration, a demo model on three simulated replicas",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serve(path, address, cmd.OutOrStdout(), slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "the YAML file that describes the models")
	cmd.Flags().StringVar(&address, "address", "", "HOST:PORT to serve clients on, in place of the configured one")
	return cmd
}

func serve(path, address string, out io.Writer, log *slog.Logger) error {
	c, err := load(path, log)
	if err != nil {
		return err
	}
	first := *c
	if address != "" {
		first.HTTP.Address = address
	}
	paceCollector()
	stop, reload := signals()
	server, err := ingress.New(&first, log)
	if err != nil {
		return err
	}
	announce(out, c, server)
	return run(server, path, c, stop, reload, log)
}

// run serves until the first signal to stop and the drain that it begins. The file at path, if it is not
// empty, is followed until the drain is over, so that logs are rotated and keys revoked in a drain too.
func run(server *ingress.Server, path string, c *config.Config, stop, reload <-chan os.Signal, log *slog.Logger) error {
	ctx, drain := context.WithCancel(context.Background())
	following, end := context.WithCancel(context.Background())
	var background sync.WaitGroup
	background.Go(func() { endOn(stop, drain, ctx) })
	background.Go(func() { paceProcessors(ctx) })
	if path != "" {
		background.Go(func() { watch(following, path, c, reload, server, log) })
	}
	err := server.Serve(ctx)
	drain()
	end()
	background.Wait()
	server.Close()
	return err
}

// load reads the configuration, or takes the embedded one if there is no file.
func load(path string, log *slog.Logger) (*config.Config, error) {
	if path == "" {
		return config.Default(), nil
	}
	c, warnings, err := config.Load(path, checks)
	warn(log, warnings)
	return c, err
}

func warn(log *slog.Logger, warnings []config.Problem) {
	for _, w := range warnings {
		log.Warn("configuration", "problem", w.String())
	}
}

// signals subscribes to those that end the process and to the one that has the configuration read again.
func signals() (stop, reload chan os.Signal) {
	stop, reload = make(chan os.Signal, 2), make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	signal.Notify(reload, syscall.SIGHUP)
	return stop, reload
}

// endOn begins the drain at the first signal and ends the process at the second.
func endOn(stop <-chan os.Signal, end context.CancelFunc, ctx context.Context) {
	select {
	case <-stop:
		end()
	case <-ctx.Done():
		return
	}
	go func() {
		<-stop
		os.Exit(1)
	}()
}

// watch has the server go by the file as it changes.
func watch(ctx context.Context, path string, running *config.Config, reload <-chan os.Signal, server *ingress.Server, log *slog.Logger) {
	w := config.Watcher{
		Path:    path,
		Checks:  checks,
		Every:   watchEvery,
		Signals: reload,
		Running: running,
		Reload: func(c *config.Config, warnings []config.Problem, err error) {
			takeOver(server, running, c, warnings, err, log)
		},
	}
	w.Run(ctx)
}

// takeOver has the server go by what was loaded; err says why nothing was.
func takeOver(server *ingress.Server, running, c *config.Config, warnings []config.Problem, err error, log *slog.Logger) {
	warn(log, warnings)
	if err == nil {
		if keys := config.RestartKeys(running, c); len(keys) > 0 {
			log.Warn("a restart is needed for some changes", "keys", strings.Join(keys, ", "))
		}
		err = server.Apply(c)
	} else {
		server.ReloadFailed()
	}
	if err != nil {
		log.Error("the configuration stays as it was", "error", err)
		return
	}
	log.Info("the configuration was taken over", "models", len(c.Models))
}

// announce tells a person at the terminal how to begin.
func announce(out io.Writer, c *config.Config, server *ingress.Server) {
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
		fmt.Fprintf(out, "admin   http://%s\n", admin)
	}
	fmt.Fprintf(out, "models  %s\n\n", strings.Join(models, ", "))
	fmt.Fprintf(out, "curl -N %s://%s/v1/chat/completions -H 'Content-Type: application/json' \\\n"+
		"  -d '{\"model\": %q, \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n", scheme, server.Address(), c.Models[0].ID)
}
