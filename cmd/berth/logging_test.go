package main

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLogLevelIsTheLowestThatIsLogged(t *testing.T) {
	for level, want := range map[string]string{"debug": "debug info warn error", "info": "info warn error", "warn": "warn error", "error": "error"} {
		for _, format := range []string{"text", "json"} {
			var out bytes.Buffer
			log, err := (&logFlags{level: level, format: format}).newLogger(&out)
			if err != nil {
				t.Fatal(err)
			}
			log.Debug("debug")
			log.Info("info")
			log.Warn("warn")
			log.Error("error")
			if got := strings.Count(out.String(), "\n"); got != len(strings.Fields(want)) {
				t.Errorf("--log-level %s --log-format %s: %d lines, want %s\n%s", level, format, got, want, out.String())
			}
		}
	}
}

func TestLogFormat(t *testing.T) {
	for format, check := range map[string]func(line string) bool{
		"text": func(line string) bool { return strings.HasSuffix(line, `level=INFO msg="a message" key=1`+"\n") },
		"json": func(line string) bool {
			var fields map[string]any
			return json.Unmarshal([]byte(line), &fields) == nil && fields["msg"] == "a message" && fields["key"] == 1.0
		},
	} {
		var out bytes.Buffer
		log, err := (&logFlags{level: "info", format: format}).newLogger(&out)
		if err != nil {
			t.Fatal(err)
		}
		if log.Info("a message", "key", 1); !check(out.String()) {
			t.Errorf("--log-format %s: %q", format, out.String())
		}
	}
}

// The flags are checked before anything is started.
func TestLogFlagsOfServeAndLLMServer(t *testing.T) {
	for _, command := range []string{"serve", "llmserver --simulated --max-ongoing-requests 1"} {
		for flags, want := range map[string]string{
			"--log-level loud": `--log-level must be debug, info, warn or error, not "loud"`,
			"--log-format xml": `--log-format must be text or json, not "xml"`,
		} {
			root := rootCommand()
			root.SetArgs(strings.Fields(command + " " + flags))
			if err := root.Execute(); err == nil || err.Error() != want {
				t.Errorf("berth %s %s: got %v, want %s", command, flags, err, want)
			}
		}
		var help bytes.Buffer
		root := rootCommand()
		root.SetOut(&help)
		root.SetArgs([]string{strings.Fields(command)[0], "--help"})
		if err := root.Execute(); err != nil || !strings.Contains(help.String(), "--log-level") || !strings.Contains(help.String(), "--log-format") {
			t.Errorf("the help of berth %s lacks the log flags: %v\n%s", command, err, help.String())
		}
	}
}

// Errors of net/http's server are logged at debug, and so only if the flag asks for it.
func TestLogLevelDebugShowsServerErrors(t *testing.T) {
	for _, level := range []string{"debug", "info"} {
		s := startServerWith(t, writeTLS(t), logFlags{level: level, format: "text"})
		if resp, err := http.Get("http://" + s.Address() + "/v1/models"); err == nil { // no TLS
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		if level == "debug" {
			eventually(t, "the failed TLS handshake is logged", func() bool { return s.log.has("level=DEBUG") && s.log.has("TLS handshake error") })
		}
		s.end(t)
		if logged := s.log.has("TLS handshake error"); logged != (level == "debug") {
			t.Errorf("at level %s the handshake error is logged: %t", level, logged)
		}
	}
}

// writeTLS writes a certificate and returns the lines of configuration that use it.
func writeTLS(t *testing.T) string {
	t.Helper()
	other := httptest.NewTLSServer(http.NotFoundHandler())
	defer other.Close()
	pair := other.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for file, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, "key.pem": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("http: {address: \"127.0.0.1:0\", tls: {cert_file: %q, key_file: %q}}", dir+"/cert.pem", dir+"/key.pem")
}
