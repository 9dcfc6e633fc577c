package telemetry

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestOutageIsLoggedOnceAtItsBeginningAndOnceAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logBuffer)
		o := outage{log: log.logger(), level: slog.LevelError, begin: "it begins", over: "it is over"}
		o.record(nil, 0)
		for range 300 { // for a minute, with a success after each failure
			o.record(errors.New("no space"), 2)
			time.Sleep(200 * time.Millisecond)
			o.record(nil, 0)
		}
		if text := log.take(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `level=ERROR msg="it begins" error="no space"`) {
			t.Errorf("logged at first:\n%s", text)
		}
		time.Sleep(outageQuiet)
		o.record(nil, 0)
		o.record(nil, 0)
		if text := log.take(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `level=INFO msg="it is over" lost=600 after=1m1s`) {
			t.Errorf("logged at the end:\n%s", text)
		}
		o.record(errors.New("no space again"), 1)
		if text := log.take(); !strings.Contains(text, "no space again") {
			t.Errorf("the next outage is logged as %q", text)
		}
	})
}

func TestSpoolLogsAFullDiskInTwoLines(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	s, dropped, log := spooled(t, full)
	wait := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("never: %s", what)
			}
		}
	}
	for i := range 200 {
		s.Write([]byte("line\n"))
		wait("the line is dropped", func() bool { return dropped.Load() == int64(i+1) })
	}
	path := filepath.Join(t.TempDir(), "log")
	out, err := openAccessLog(path)
	if err != nil {
		t.Fatal(err)
	}
	s.setOutput(out)
	s.Write([]byte("line\n"))
	wait("the line is written", func() bool {
		written, _ := os.ReadFile(path)
		return string(written) == "line\n"
	})
	s.close()
	text := log.take()
	if strings.Count(text, "\n") != 2 || strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, "no space left") || !strings.Contains(text, "lost=200") {
		t.Errorf("logged:\n%s", text)
	}
}

func TestSpoolStartsANewLineAfterAPartialOne(t *testing.T) {
	for before, want := range map[string]string{"": "{}\n", "{}\n": "{}\n{}\n", `{"part`: "{\"part\n{}\n"} {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		full := &disk{full: true}
		s, _, _ := spooled(t, full)
		s.Write([]byte("a long line\n")) // of which the full disk takes a part
		out, err := openAccessLog(path)
		if err != nil {
			t.Fatal(err)
		}
		for done := false; !done; time.Sleep(time.Millisecond) {
			s.writing.Lock()
			done = full.Len() > 0
			s.writing.Unlock()
		}
		s.setOutput(out)
		s.Write([]byte("{}\n"))
		s.close()
		if written, err := os.ReadFile(path); err != nil || string(written) != want {
			t.Errorf("after %q the file is %q %v, want %q", before, written, err, want)
		}
	}
}

func TestTracingLogsARefusedCollectorOnce(t *testing.T) {
	unused, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unused.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+unused.Addr().String())
	log := new(logBuffer)
	to := log.logger()
	tracing, err := TracingFromEnv(to)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		_, span := tracing.tracer.Start(t.Context(), "span")
		span.End()
		if err := tracing.provider.ForceFlush(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if text := log.take(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "connection refused") {
		t.Errorf("logged:\n%s", text)
	}
	tracing.Close(to)
	if text := log.take(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "lost=20") {
		t.Errorf("logged at the end:\n%s", text)
	}
}
