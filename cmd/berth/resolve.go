package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"berth/config"
	"berth/ingress"
	"berth/llmserver"
)

// resolveTimeout bounds the lookup at one source.
const resolveTimeout = 10 * time.Second

// resolveSources prints the replicas that the sources of all models give now. The error says how
// many sources gave none.
func resolveSources(ctx context.Context, out io.Writer, c *config.Config) error {
	asked, failed := 0, 0
	for i := range c.Models {
		m := &c.Models[i]
		sources, err := ingress.Sources(m, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		for _, source := range sources {
			asked++
			lookup, stop := context.WithTimeout(ctx, resolveTimeout)
			set, err := source.Lookup(lookup)
			stop()
			if err != nil {
				failed++
				fmt.Fprintf(out, "\nmodel %s, %s: %v\n", m.ID, source, err)
				continue
			}
			fmt.Fprintf(out, "\nmodel %s, %s: %d replicas\n", m.ID, source, len(set))
			for _, e := range set {
				printEndpoint(out, m, e)
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d sources gave no replicas", failed, asked)
	}
	return nil
}

func printEndpoint(out io.Writer, m *config.Model, e llmserver.Endpoint) {
	limit := m.MaxOngoingRequests
	if e.Limit != 0 {
		limit = e.Limit
	}
	fmt.Fprintf(out, "  %s  %s  %d slots", e.ID, e.URL, limit)
	if e.Instance != "" {
		fmt.Fprintf(out, "  instance %s", e.Instance)
	}
	if e.Draining {
		fmt.Fprint(out, "  draining")
	}
	fmt.Fprintln(out)
}

// checkReplicaFiles adds the problems of the models' files with replicas to the result of a load.
// serve starts without such a file, so that a file that cannot be read is a warning.
func checkReplicaFiles(c *config.Config, warnings []config.Problem, err error) ([]config.Problem, error) {
	if err != nil {
		return warnings, err
	}
	var problems config.Problems
	for _, m := range c.Models {
		if m.File == "" {
			continue
		}
		data, err := os.ReadFile(m.File)
		if pathError, ok := errors.AsType[*fs.PathError](err); ok {
			warnings = append(warnings, config.Problem{File: m.File, Message: "cannot read this file: " + pathError.Err.Error()})
			continue
		}
		_, err = config.ParseReplicas(data, m.File)
		if found, ok := errors.AsType[config.Problems](err); ok {
			problems = append(problems, found...)
		}
	}
	if len(problems) > 0 {
		return warnings, problems
	}
	return warnings, nil
}
