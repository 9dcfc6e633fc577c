package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"
)

// logFlags are the logging flags of a command.
type logFlags struct{ level, format string }

var logLevels = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
}

func (f *logFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.level, "log-level", "info",
		"lowest level that is logged: debug, info, warn or error; debug includes the errors of the HTTP server, such as failed TLS handshakes")
	cmd.Flags().StringVar(&f.format, "log-format", "text", "format of the log: text or json")
}

// newLogger returns a logger to w with the level and format of the flags.
func (f *logFlags) newLogger(w io.Writer) (*slog.Logger, error) {
	level, ok := logLevels[f.level]
	if !ok {
		return nil, fmt.Errorf("--log-level must be debug, info, warn or error, not %q", f.level)
	}
	options := &slog.HandlerOptions{Level: level}
	switch f.format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, fmt.Errorf("--log-format must be text or json, not %q", f.format)
}
