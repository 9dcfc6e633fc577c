package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// startTruncatingEngine starts an engine that aborts every response, streamed or not, unless the
// prompt is "to the end".
func startTruncatingEngine(t *testing.T) (url string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			return // health check
		}
		body, _ := io.ReadAll(r.Body)
		kind, text := "application/json", []string{`{"choices":[`, `{}]}`}
		if bytes.Contains(body, []byte(`"stream":true`)) {
			kind, text = "text/event-stream", []string{firstEvent, "data: [DONE]\n\n"}
		}
		w.Header().Set("Content-Type", kind)
		io.WriteString(w, text[0])
		http.NewResponseController(w).Flush()
		if !bytes.Contains(body, []byte("to the end")) {
			panic(http.ErrAbortHandler)
		}
		io.WriteString(w, text[1])
	}))
	t.Cleanup(s.Close)
	return s.URL
}

const firstEvent = "data: {\"choices\":[{\"delta\":{\"content\":\"one\"}}]}\n\n"

// HTTP/1.0 has no chunked encoding, so the end of the connection ends a response without
// Content-Length. A truncated response must therefore end with a reset.
func TestTruncatedResponseDoesNotLookCompleteToHTTP10(t *testing.T) {
	t.Parallel()
	engine := startTruncatingEngine(t)
	a := startAgent(t, engine, 4)
	replicas := "llm_configs:\n- {model_loading_config: {model_id: demo}, replicas: [{url: \"" + engine + "\"}]}\n"
	dir := t.TempDir()
	writeCertificate(t, dir, 1)
	b := serve(t, loopbackConfig+replicas)
	s := serve(t, strings.Replace(loopbackConfig, `:0"}`, `:0", tls: {cert_file: `+dir+`/cert.pem, key_file: `+dir+`/key.pem}}`, 1)+replicas)
	for name, url := range map[string]string{"plain": b.url, "TLS": s.url, "agent": a.url} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, stream %v", name, stream), func(t *testing.T) {
				if text, err := postHTTP10(t, url, "to the end", stream); err != nil || !strings.Contains(text, " 200 ") {
					t.Errorf("complete response: %q, %v", text, err)
				}
				text, err := postHTTP10(t, url, "half of it", stream)
				// Of a response that is held back until it is complete the client has got nothing.
				if refused := !stream && err == nil && strings.Contains(text, " 502 ") && strings.Contains(text, "upstream_broken"); !errors.Is(err, syscall.ECONNRESET) && !refused {
					t.Errorf("truncated response: %q, error %v, want a reset or an error", text, err)
				}
				if stream && name != "agent" && !strings.Contains(text, "upstream_broken") {
					t.Errorf("no error event in %q", text)
				}
			})
		}
	}
}

// postHTTP10 sends an HTTP/1.0 request and returns the raw response.
func postHTTP10(t *testing.T, url, prompt string, stream bool) (text string, err error) {
	t.Helper()
	c := dialRaw(t, url)
	body := http10Body(prompt, stream)
	if _, err := fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(c)
	return string(all), err
}

func http10Body(prompt string, stream bool) string {
	return fmt.Sprintf(`{"model":"demo","stream":%v,"messages":[{"role":"user","content":%q}]}`, stream, prompt)
}

func TestTruncatedResponseIsReportedByCurl(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		skipOrFail(t, "curl is required: %v", err)
	}
	engine := startTruncatingEngine(t)
	b := serve(t, loopbackConfig+"llm_configs:\n- {model_loading_config: {model_id: demo}, replicas: [{url: \""+engine+"\"}]}\n")
	const incomplete, reset = 18, 56
	t.Run("HTTP/1.1", func(t *testing.T) { wantCurl(t, incomplete, b.url) })
	t.Run("HTTP/1.0", func(t *testing.T) { wantCurl(t, reset, b.url, "--http1.0") })
	t.Run("behind nginx", func(t *testing.T) {
		wantCurl(t, incomplete, "http://nginx", "--unix-socket", startNginx(t, b.url))
	})
}

// wantCurl checks that curl exits with status 0 for a complete stream and with the given status for
// a truncated one.
func wantCurl(t *testing.T, status int, url string, options ...string) {
	t.Helper()
	for prompt, want := range map[string]int{"to the end": 0, "half of it": status} {
		args := append([]string{"-sS", "-N", "-H", "Content-Type: application/json", "-d", http10Body(prompt, true), url + "/v1/chat/completions"}, options...)
		c := startCommand(t, "", "curl", args...)
		if got := c.waitExit(t); got != want || !c.stdout.contains(firstEvent) {
			t.Errorf("%s: curl exited with status %d, want %d; output %q %q", prompt, got, want, c.stdout.String(), c.stderr.String())
		}
	}
}

// startNginx starts nginx with default settings in front of a server and returns the path of
// nginx's Unix socket.
func startNginx(t *testing.T, url string) (socket string) {
	t.Helper()
	program, err := exec.LookPath("nginx")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			skipOrFail(t, "nginx is required: %v", err)
		}
	}
	dir := t.TempDir()
	socket = filepath.Join(dir, "socket")
	paths := ""
	for _, name := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		paths += name + "_temp_path " + dir + "; "
	}
	replaceFile(t, filepath.Join(dir, "nginx.conf"), fmt.Sprintf(`
		daemon off; master_process off; pid %[1]s/pid; error_log stderr;
		events {}
		http { access_log off; %[2]s server { listen unix:%[3]s; location / { proxy_pass %[4]s; } } }`, dir, paths, socket, url))
	c := startCommand(t, "", program, "-e", "stderr", "-c", filepath.Join(dir, "nginx.conf"))
	eventually(t, "nginx listens", func() bool {
		select {
		case <-c.done:
			t.Fatalf("nginx exited: %s", c.stderr.String())
		default:
		}
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return socket
}
