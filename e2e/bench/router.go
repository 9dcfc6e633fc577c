package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// installer installs Python packages faster than pip.
const installer = "uv==0.13.9"

// A router is what users would pick in berth's place. It comes from PyPI at a pinned version.
type router struct {
	name    string
	pin     string
	command []string // after python; its options follow
	options []string
}

var routers = []router{
	{"vllm-router", "vllm-router==0.1.17", []string{"-m", "vllm_router.launch_router"},
		[]string{"--max-concurrent-requests", "8192", "--log-level", "warning"}},
	{"sglang-router", "sglang-router==0.3.2", []string{"-m", "sglang_router.launch_router"},
		[]string{"--max-concurrent-requests", "8192", "--log-level", "error"}},
}

func isRouter(target string) bool {
	return slices.ContainsFunc(routers, func(r router) bool { return r.name == target })
}

// routerTargets returns the routers that are installed or can be. One that cannot is a line on standard error.
func routerTargets(engine string) (all []*target, err error) {
	for _, r := range routers {
		python, err := r.install()
		if err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s is left out: it cannot be installed: %v\n", r.name, err)
			continue
		}
		addresses, err := freeAddresses(2)
		if err != nil {
			return nil, err
		}
		all = append(all, &target{name: r.name, address: addresses[0], command: r.arguments(python, addresses[0], addresses[1], engine)})
	}
	return all, nil
}

// arguments returns the command that serves on one address, with the router's own metrics on the other.
func (r router) arguments(python, address, metrics, engine string) []string {
	host, port, _ := net.SplitHostPort(address)
	_, metricsPort, _ := net.SplitHostPort(metrics)
	return slices.Concat([]string{python}, r.command,
		[]string{"--host", host, "--port", port, "--prometheus-port", metricsPort, "--policy", "cache_aware", "--worker-urls", "http://" + engine},
		r.options)
}

// install finds or makes the virtual environment of the router in the user's cache directory and returns the path of its Python.
// It is made aside and renamed when it is complete; only Python itself works after that, and not the scripts beside it.
func (r router) install() (python string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "berth-bench")
	home := filepath.Join(cache, strings.ReplaceAll(r.pin, "==", "-"))
	python = filepath.Join(home, "bin", "python")
	if _, err := os.Stat(python); err == nil {
		return python, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	aside, err := os.MkdirTemp(cache, "making-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(aside)
	made := filepath.Join(aside, "bin", "python")
	for _, command := range [][]string{
		{"python3", "-m", "venv", aside},
		{made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", installer},
		{made, "-m", "uv", "pip", "install", "--quiet", "--python", made, "--only-binary", ":all:", r.pin},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, firstLine(out))
		}
	}
	return python, os.Rename(aside, home)
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return line
}
