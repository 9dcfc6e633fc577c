package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth/config"
	"berth/ingress"
)

// A journal is a log that can be read while it is written.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// take returns and removes the text of the log.
func (j *journal) take() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.text.Reset()
	return j.text.String()
}

func (j *journal) has(text string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Contains(j.text.String(), text)
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// A runningServer is berth serve with a configuration file and with signals that the test sends.
type runningServer struct {
	*ingress.Server
	path         string
	log          *journal
	stop, reload chan os.Signal
	ended        chan error
}

// startServer serves a simulated model, with more as further lines of configuration.
func startServer(t *testing.T, more string) *runningServer {
	return startServerWith(t, more, logFlags{level: "info", format: "text"})
}

func startServerWith(t *testing.T, more string, logs logFlags) *runningServer {
	t.Helper()
	s := &runningServer{path: filepath.Join(t.TempDir(), "berth.yaml"), log: new(journal)}
	s.write(t, more)
	log, err := logs.newLogger(s.log)
	if err != nil {
		t.Fatal(err)
	}
	c, err := loadConfig(s.path, log)
	if err != nil {
		t.Fatal(err)
	}
	if s.Server, err = ingress.New(c, log); err != nil {
		t.Fatal(err)
	}
	s.stop, s.reload, s.ended = make(chan os.Signal, 2), make(chan os.Signal, 1), make(chan error, 1)
	go func() { s.ended <- runServer(s.Server, s.path, c, s.stop, s.reload, log) }()
	return s
}

func (s *runningServer) write(t *testing.T, more string) {
	t.Helper()
	text := `
admin: {address: "127.0.0.1:0"}
llm_configs: [{model_loading_config: {model_id: m}, simulated: {decode_step_ms: 1}}]
` + more
	if !strings.Contains(more, "http:") {
		text += "\nhttp: {address: \"127.0.0.1:0\"}\n"
	}
	if err := os.WriteFile(s.path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// end stops the server and waits until it has ended.
func (s *runningServer) end(t *testing.T) {
	t.Helper()
	s.stop <- syscall.SIGTERM
	select {
	case err := <-s.ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the server does not end")
	}
}

func (s *runningServer) metrics(t *testing.T) string {
	t.Helper()
	resp, err := http.Get("http://" + s.AdminAddress() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestServeLogsEveryReload(t *testing.T) {
	s := startServer(t, "")
	defer s.end(t)
	for _, step := range []struct {
		more   string
		logged []string
		metric string
	}{
		{"decision_headers: true", []string{`level=INFO msg="configuration reloaded" changes="decision_headers: false -> true"`}, "1"},
		{"no_such_key: 1", []string{"level=ERROR", "configuration reload failed", "no_such_key"}, "0"},
		{`http: {address: "127.0.0.1:1"}`, []string{"level=WARN", "after a restart", "http.address", "configuration reloaded"}, "1"},
		{fmt.Sprintf("access_log: %q", t.TempDir()+"/none/log"), []string{"level=ERROR", "reload failed", "the access log"}, "0"},
		{"", []string{`"configuration reloaded" changes="http.address: \"127.0.0.1:1\" -> \"127.0.0.1:0\""`}, "1"},
		{"", []string{`"configuration reloaded" changes="nothing changed"`}, "1"},
	} {
		s.log.take()
		s.write(t, step.more)
		s.reload <- syscall.SIGHUP
		for _, text := range step.logged {
			eventually(t, fmt.Sprintf("after %q the log has %q", step.more, text), func() bool { return s.log.has(text) })
		}
		if line := "\nberth_config_last_reload_successful " + step.metric + "\n"; !strings.Contains(s.metrics(t), line) {
			t.Errorf("after %q the metrics have no line %q", step.more, line)
		}
	}
}

func TestServeLogsBeginAndEndOfTheDrain(t *testing.T) {
	s := startServer(t, "")
	s.end(t)
	text := s.log.take()
	if draining, stopped := strings.Index(text, "msg=draining"), strings.Index(text, "msg=stopped\n"); draining < 0 || stopped < draining {
		t.Errorf("the log has no msg=draining followed by msg=stopped\n%s", text)
	}
}

func TestServeBannerNamesTheAdminPaths(t *testing.T) {
	s := startServer(t, "")
	defer s.end(t)
	var banner bytes.Buffer
	printBanner(&banner, config.Default(), s.Server)
	for _, path := range []string{"/internal/replicas", "/internal/slots", "/internal/decisions", "/metrics"} {
		if !strings.Contains(banner.String(), path) {
			t.Errorf("the banner has no %s\n%s", path, banner.String())
		}
		resp, err := http.Get("http://" + s.AdminAddress() + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("GET %s: %s", path, resp.Status)
		}
	}
}

func TestServeWarnsOfKeysThatNeedARestart(t *testing.T) {
	log := new(journal)
	running := config.Default()
	running.HTTP.Address, running.Admin.Address = "127.0.0.1:0", ""
	server, err := ingress.New(running, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	next := *running
	next.Admin.Address = "127.0.0.1:1"
	r := &reloader{server, running, running, slog.New(slog.NewTextHandler(log, nil))}
	r.apply(&next, []config.Problem{{File: "f", Message: "a warning"}}, nil)
	text := log.take()
	for _, want := range []string{"a warning", "keys=admin.address", "configuration reloaded"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the log\n%s", want, text)
		}
	}
}

// During a drain SIGHUP still reloads the configuration, which reopens the logs.
func TestServeReloadsDuringDrain(t *testing.T) {
	access := filepath.Join(t.TempDir(), "access.log")
	s := startServer(t, fmt.Sprintf("access_log: %q", access))
	body := `{"model":"m","stream":true,"max_tokens":400000,"messages":[{"role":"user","content":"Hi"}]}`
	resp, err := http.Post("http://"+s.Address()+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	s.stop <- syscall.SIGTERM
	eventually(t, "the drain begins", func() bool { return s.log.has("draining") })
	if err := os.Rename(access, access+".1"); err != nil {
		t.Fatal(err)
	}
	s.reload <- syscall.SIGHUP
	eventually(t, "the configuration is reloaded", func() bool { return s.log.has("configuration reloaded") })
	resp.Body.Close()
	select {
	case err := <-s.ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the server does not end")
	}
	if line, err := os.ReadFile(access); err != nil || !strings.Contains(string(line), "client_gone") {
		t.Errorf("the reopened log has %q %v", line, err)
	}
}

func TestServeLogsABoundedNumberOfChanges(t *testing.T) {
	changes := make([]string, 30)
	for i := range changes {
		changes[i] = fmt.Sprint("c", i)
	}
	if got := describeChanges(changes); !strings.HasPrefix(got, "c0; c1; ") || !strings.HasSuffix(got, "; c19; and 10 more") {
		t.Errorf("the changes are %s", got)
	}
}
