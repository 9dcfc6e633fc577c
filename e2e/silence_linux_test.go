package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// A hundred requests wait for the first token and all connections are silent. The link is down for
// two seconds twice: around berth's keep-alive probe after 10 s and around Go's default one after
// 15 s. No stream is lost on either side of berth.
func TestSilentStreamsSurviveALinkThatWasDown(t *testing.T) {
	t.Parallel()
	const streams = 100
	link := isolateNetwork(t)
	arrived, release := make(chan struct{}, streams), make(chan struct{})
	engine := serveUnprobed(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			return // health check
		}
		io.Copy(io.Discard, r.Body)
		arrived <- struct{}{}
		<-release
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"late\"}}]}\n\ndata: [DONE]\n\n")
	})
	config := t.TempDir() + "/berth.yaml"
	replaceFile(t, config, loopbackConfig+"llm_configs:\n- model_loading_config: {model_id: demo}\n  replicas: [{url: \""+engine+"\"}]\n")
	b := waitListening(t, startBerth(t, "", "serve", "--config", config))

	const body = `{"model":"demo","stream":true,"messages":[{"role":"user","content":"Hello"}]}`
	results := make(chan error, streams)
	for range streams {
		c := dialUnprobed(t, strings.TrimPrefix(b.url, "http://"))
		fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: berth\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		go func() { results <- readStream(c) }()
	}
	for range streams {
		<-arrived
	}
	silent := time.Now()
	sleepUntil := func(after time.Duration) { <-time.After(time.Until(silent.Add(after))) }
	for _, down := range []time.Duration{9300 * time.Millisecond, 14300 * time.Millisecond} {
		sleepUntil(down)
		link(false)
		sleepUntil(down + 2*time.Second)
		link(true)
	}
	sleepUntil(33 * time.Second) // a connection with probes every 15 s would be closed after 30 s
	close(release)
	lost := 0
	for range streams {
		if err := <-results; err != nil {
			if lost++; lost == 1 {
				t.Errorf("a stream was lost: %v", err)
			}
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d streams were lost", lost, streams)
	}
	b.signal(t, syscall.SIGTERM)
	if status := b.waitExit(t); status != 0 {
		t.Errorf("berth exited with status %d, want 0", status)
	}
	b.checkLog(t)
}

// readStream reads a response and returns an error if the stream is incomplete.
func readStream(c net.Conn) error {
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(resp.Body)
	if err == nil && !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return err
}

// isolateNetwork moves the test into a new network namespace and returns a function that turns its
// loopback on and off. Until the end of the test the namespace belongs to the goroutine's locked
// thread: listeners, connections and processes created by this goroutine are in the namespace,
// those of other goroutines are not.
func isolateNetwork(t *testing.T) (link func(up bool)) {
	t.Helper()
	runtime.LockOSThread()
	outer, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		skipOrFail(t, "a network namespace requires root: unshare: %v", err)
	}
	// The thread must not end with the test, which it would if it stayed locked: the kernel kills
	// every process with a Pdeathsig when the thread that started it ends, and this thread may have
	// started processes of other tests.
	t.Cleanup(func() {
		defer outer.Close()
		setns := map[string]uintptr{"amd64": 308, "arm64": 268}[runtime.GOARCH] // not in package syscall
		if _, _, errno := syscall.Syscall(setns, outer.Fd(), syscall.CLONE_NEWNET, 0); errno != 0 {
			t.Errorf("leaving the network namespace: %v", errno)
			return
		}
		runtime.UnlockOSThread()
	})
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(socket) })
	link = func(up bool) {
		request := struct {
			name  [16]byte
			flags uint16
			_     [22]byte
		}{name: [16]byte{'l', 'o'}}
		if up {
			request.flags = syscall.IFF_UP | syscall.IFF_RUNNING
		}
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(socket), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&request))); errno != 0 {
			t.Fatalf("changing the state of the loopback: %v", errno)
		}
	}
	link(true)
	return link
}

// serveUnprobed starts a server without keep-alive probes.
func serveUnprobed(t *testing.T, h http.HandlerFunc) (url string) {
	t.Helper()
	l, err := (&net.ListenConfig{KeepAlive: -1}).Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, done := &http.Server{Handler: h}, make(chan struct{})
	go func() {
		s.Serve(l)
		close(done)
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return "http://" + l.Addr().String()
}

// dialUnprobed returns a connection without keep-alive probes from this side.
func dialUnprobed(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{KeepAlive: -1}).Dial("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
