package e2e

import (
	"cmp"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// keepAliveOptions are the socket options for the detection of a vanished peer, see socket(7) and
// tcp(7).
type keepAliveOptions struct {
	on                    bool
	idle, interval, count int // seconds, seconds, probes
	userTimeout           int // milliseconds
}

// The options are read from the sockets of real processes with an active request on each kind of
// connection.
func TestKeepAliveProbesConnectionsOfEveryKind(t *testing.T) {
	active, release := new(atomic.Int64), make(chan struct{})
	blockingHandler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if io.Copy(io.Discard, r.Body); r.Method == http.MethodPost {
			active.Add(1)
			<-release
		}
	})
	plain, encrypted := httptest.NewServer(blockingHandler), httptest.NewTLSServer(blockingHandler)
	t.Cleanup(plain.Close)
	t.Cleanup(encrypted.Close)
	defer close(release)
	trusted := filepath.Join(t.TempDir(), "ca.pem")
	replaceFile(t, trusted, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: encrypted.Certificate().Raw})))
	t.Setenv("SSL_CERT_FILE", trusted)

	a := startAgent(t, plain.URL, 8)
	config := strings.Join([]string{loopbackConfig + "llm_configs:",
		`- {model_loading_config: {model_id: plain}, replicas: [{url: "` + plain.URL + `"}]}`,
		`- {model_loading_config: {model_id: encrypted}, replicas: [{url: "` + encrypted.URL + `"}]}`,
		`- {model_loading_config: {model_id: guarded}, slot_authority: replica, replicas: [{url: "` + a.url + `"}]}`}, "\n")
	b := serve(t, config)
	dir := t.TempDir()
	writeCertificate(t, dir, 1)
	s := serve(t, strings.Replace(config, `:0"}`, `:0", tls: {cert_file: "`+dir+`/cert.pem", key_file: "`+dir+`/key.pem"}}`, 1))

	ask := func(address, version, model string) {
		c := dialRaw(t, address)
		body := `{"model":"` + model + `","messages":[{"role":"user","content":"Hello"}]}`
		fmt.Fprintf(c, "POST /v1/chat/completions HTTP/%s\r\nHost: berth\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", version, len(body), body)
	}
	ask(b.url, "1.1", "plain")     // berth's own HTTP server and client
	ask(b.url, "1.0", "encrypted") // net/http's server and client
	ask(b.url, "1.1", "guarded")
	ask(s.url, "1.1", "plain")
	ask(a.url, "1.1", "guarded")
	dialRaw(t, b.admin)
	eventually(t, "all requests have reached the engines", func() bool { return active.Load() == 5 })

	// While a response or a long request is written, berth waits two minutes for the reader and the
	// kernel three.
	const idle, writing = 30_000, 180_000
	for kind, c := range map[string]struct {
		of          *berth
		local, peer string
		number      int // at least
		userTimeout int // at least
	}{
		"clients":              {b, b.url, "", 3, writing},
		"clients with TLS":     {s, s.url, "", 1, writing},
		"admin clients":        {b, b.admin, "", 1, writing},
		"engine":               {b, "", plain.URL, 1, idle},
		"engine with TLS":      {b, "", encrypted.URL, 1, writing},
		"agent":                {b, "", a.url, 1, idle},
		"clients of the agent": {a.berth, a.url, "", 2, writing},
		"agent's engine":       {a.berth, "", plain.URL, 2, idle},
	} {
		found := connectionOptions(t, c.of, c.local, c.peer)
		if len(found) < c.number {
			t.Errorf("%s: %d connections, want at least %d", kind, len(found), c.number)
		}
		for _, got := range found {
			want := keepAliveOptions{true, 10, 4, 5, min(max(got.userTimeout, c.userTimeout), writing)}
			if got != want {
				t.Errorf("%s: connection options %+v, want %+v", kind, got, want)
			}
		}
	}
}

// connectionOptions returns the options of a process's TCP connections with the port of a local or
// peer URL.
func connectionOptions(t *testing.T, b *berth, local, peer string) (all []keepAliveOptions) {
	t.Helper()
	process, _, errno := syscall.Syscall(sysPidfdOpen, uintptr(b.Process.Pid), 0, 0)
	if errno != 0 {
		skipOrFail(t, "reading the sockets of another process: pidfd_open: %v", errno)
	}
	defer syscall.Close(int(process))
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", b.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		number, _ := strconv.Atoi(name.Name())
		fd, _, errno := syscall.Syscall(sysPidfdGetfd, process, uintptr(number), 0)
		if errno == syscall.EBADF {
			continue // closed meanwhile
		}
		if errno != 0 {
			skipOrFail(t, "reading the sockets of another process: pidfd_getfd: %v", errno)
		}
		localAddr, localErr := syscall.Getsockname(int(fd))
		peerAddr, peerErr := syscall.Getpeername(int(fd))
		if localErr == nil && peerErr == nil && (hasPort(localAddr, local) || hasPort(peerAddr, peer)) {
			all = append(all, readKeepAlive(t, int(fd)))
		}
		syscall.Close(int(fd))
	}
	return all
}

const (
	sysPidfdOpen  = 434
	sysPidfdGetfd = 438
)

// hasPort reports whether the address has the port of the URL.
func hasPort(address syscall.Sockaddr, url string) bool {
	port := 0
	switch a := address.(type) {
	case *syscall.SockaddrInet4:
		port = a.Port
	case *syscall.SockaddrInet6:
		port = a.Port
	}
	return url != "" && strings.HasSuffix(url, ":"+strconv.Itoa(port))
}

// readKeepAlive returns the keep-alive options of a socket.
func readKeepAlive(t *testing.T, fd int) keepAliveOptions {
	t.Helper()
	var failed error
	option := func(level, name int) int {
		value, err := syscall.GetsockoptInt(fd, level, name)
		failed = cmp.Or(failed, err)
		return value
	}
	const tcpUserTimeout = 0x12 // not defined in package syscall
	p := keepAliveOptions{
		on:          option(syscall.SOL_SOCKET, syscall.SO_KEEPALIVE) != 0,
		idle:        option(syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE),
		interval:    option(syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL),
		count:       option(syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT),
		userTimeout: option(syscall.IPPROTO_TCP, tcpUserTimeout),
	}
	if failed != nil {
		t.Fatal(failed)
	}
	return p
}
