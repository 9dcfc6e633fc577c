package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"syscall"
)

// remaining returns the numbers of running and of queued requests.
type remaining func() (running, queued int)

// cancelOnSignal calls cancel at the first signal and ends the process at the second. It blocks
// until the first signal or the end of ctx. On a terminal it says what the process waits for.
func cancelOnSignal(ctx context.Context, stop <-chan os.Signal, cancel context.CancelFunc, left remaining, terminal io.Writer, log *slog.Logger) {
	select {
	case <-stop:
		printRemaining(terminal, left)
		cancel()
	case <-ctx.Done():
		return
	}
	go exitOnSignal(stop, left, log)
}

// exitOnSignal ends the process at the next signal, with the exit status by which a shell would
// report a process killed by that signal.
func exitOnSignal(stop <-chan os.Signal, left remaining, log *slog.Logger) {
	second := <-stop
	running, queued := left()
	log.Warn("second signal, ending at once", "signal", second, "running", running, "queued", queued)
	status := 1
	if s, ok := second.(syscall.Signal); ok {
		status = 128 + int(s)
	}
	os.Exit(status)
}

// printRemaining prints the requests left at the first signal to w, if w is a terminal. Logs have
// the numbers in any case.
func printRemaining(w io.Writer, left remaining) {
	if !isTerminal(w) {
		return
	}
	running, queued := left()
	fmt.Fprintf(w, "\nberth waits for %d running and %d queued requests to finish; press ^C again to end at once.\n", running, queued)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
