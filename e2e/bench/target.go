package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"berth/e2e/scenes"
)

// target is a proxy to measure, or the engine itself, which has no command.
type target struct {
	name    string
	address string
	admin   string // address of berth's admin listener
	command []string
	process *exec.Cmd
}

const berthConfig = `http: {address: %q}
admin: {address: %q}
llm_configs:
  - model_loading_config: {model_id: bench}
    deployment_config:
      max_ongoing_requests: 8192
      request_router_config: {request_router_class: PrefixCacheAffinityRouter}
    replicas: [{id: engine, url: "http://%s"}]
`

const haproxyConfig = `global
    nbthread 2
    maxconn 8000
    no log
defaults
    mode http
    option http-no-delay
    option abortonclose
    http-reuse safe
    timeout connect 5s
    timeout client 10m
    timeout server 10m
frontend in
    bind %s
    default_backend engine
backend engine
    server engine %s maxconn 4000 pool-max-conn 2000
`

const nginxConfig = `worker_processes 2;
worker_rlimit_nofile 20000;
daemon off;
pid nginx.pid;
error_log stderr error;
events { worker_connections 9000; }
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    keepalive_requests 1000000;
    upstream engine { server %[2]s; keepalive 1024; keepalive_requests 1000000; }
    server {
        listen %[1]s backlog=4096;
        client_max_body_size 64m;
        client_body_buffer_size 512k;
        location / {
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_request_buffering off;
            proxy_read_timeout 600s;
        }
    }
}
`

// newTargets returns the engine, berth, the berth binary in against if not empty, and HAProxy and
// nginx if installed. Configuration files are written to dir.
func newTargets(dir, engine, berth, against string) ([]*target, error) {
	all := []*target{{name: "direct", address: engine}}
	add := func(name, config string, command func(file string) []string) error {
		addresses, err := freeAddresses(2)
		if err != nil {
			return err
		}
		file := filepath.Join(dir, name+".conf")
		text := fmt.Sprintf(config, addresses[0], engine)
		if config == berthConfig {
			text = fmt.Sprintf(config, addresses[0], addresses[1], engine)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
		t := &target{name: name, address: addresses[0], command: command(file)}
		if config == berthConfig {
			t.admin = addresses[1]
		}
		all = append(all, t)
		return nil
	}
	for _, build := range []struct{ name, binary string }{{"berth", berth}, {"against", against}} {
		if build.binary == "" {
			continue
		}
		if err := add(build.name, berthConfig, func(file string) []string { return []string{build.binary, "serve", "--config", file} }); err != nil {
			return nil, err
		}
	}
	for _, proxy := range []struct {
		name, config string
		arguments    func(file string) []string
	}{
		{"haproxy", haproxyConfig, func(file string) []string { return []string{"-db", "-f", file} }},
		{"nginx", nginxConfig, func(file string) []string { return []string{"-p", dir, "-c", file} }},
	} {
		path, err := exec.LookPath(proxy.name)
		if err != nil {
			continue
		}
		if err := add(proxy.name, proxy.config, func(file string) []string { return append([]string{path}, proxy.arguments(file)...) }); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// freeAddresses returns n loopback addresses with free ports at one host.
func freeAddresses(n int) (addresses []string, err error) {
	host := scenes.FreeLoopback()
	for range n {
		l, err := net.Listen("tcp", host)
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addresses = append(addresses, l.Addr().String())
	}
	return addresses, nil
}

// startTimeout bounds the time until a target forwards its first request. Routers check the health
// of their workers first.
const startTimeout = time.Minute

// start starts the process and returns after the first forwarded request. It does nothing for the
// engine.
func (t *target) start() error {
	if t.command == nil {
		return nil
	}
	t.process = exec.Command(t.command[0], t.command[1:]...)
	t.process.Stderr = os.Stderr
	if t.admin != "" {
		t.process.Stderr = nil // berth logs probes and connections
	}
	if err := t.process.Start(); err != nil {
		return err
	}
	var err error
	client := &http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		var resp *http.Response
		resp, err = client.Post("http://"+t.address+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"bench","messages":[{"role":"user","content":"hello"}],"max_tokens":1}`))
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("status %d", resp.StatusCode)
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.stop()
	return fmt.Errorf("%s is not ready after %v: %w", t.name, startTimeout, err)
}

// stop ends the process with SIGTERM, and with SIGKILL after 3 s. It does nothing if no process
// runs.
func (t *target) stop() {
	if t.process == nil {
		return
	}
	t.process.Process.Signal(syscall.SIGTERM)
	killTimer := time.AfterFunc(3*time.Second, func() { t.process.Process.Kill() })
	t.process.Wait()
	killTimer.Stop()
	t.process = nil
}

// usage returns the resources used by the proxy. They are zero for the engine, which is not
// measured.
func (t *target) usage() (usage, error) {
	if t.process == nil {
		return usage{}, nil
	}
	return processUsage(t.process.Process.Pid)
}

// startEngine starts this executable as the engine. The engine ends when stop is called or this
// process ends, because its stdin is closed.
func startEngine() (address string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(self, "engine")
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	address, err = bufio.NewReader(out).ReadString('\n')
	return strings.TrimSpace(address), func() { in.Close(); cmd.Wait() }, err
}
