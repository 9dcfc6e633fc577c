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

// router is an LLM router to compare with, installed from PyPI at a pinned version.
type router struct {
	name    string
	pin     string
	command []string // arguments of Python, before the options
	options []string
}

// manyRequests are the options for more concurrent requests than the routers' default.
var manyRequests = []string{"--max-concurrent-requests", "8192"}

var routers = []router{
	{"vllm-router", "vllm-router==0.1.17", []string{"-m", "vllm_router.launch_router"},
		[]string{"--log-level", "warning"}},
	{"sglang-router", "sglang-router==0.3.2", []string{"-m", "sglang_router.launch_router"},
		[]string{"--log-level", "error"}},
}

// isRouter reports whether the target is one of routers.
func isRouter(target string) bool {
	return slices.ContainsFunc(routers, func(r router) bool { return r.name == target })
}

// newRouterTargets returns a target for each router that is installed or can be installed. It
// reports the others on standard error.
func newRouterTargets(engine string) (all []*target, err error) {
	for _, r := range routers {
		python, err := r.ensureInstalled()
		if err != nil {
			fmt.Fprintf(os.Stderr, "bench: skipping %s: installation failed: %v\n", r.name, err)
			continue
		}
		addresses, err := freeAddresses(2)
		if err != nil {
			return nil, err
		}
		all = append(all, &target{name: r.name, address: addresses[0], command: append(r.arguments(python, addresses[0], addresses[1], "cache_aware", "http://"+engine), manyRequests...)})
	}
	return all, nil
}

// arguments returns the command line of a router that serves requests on address and its own
// metrics on metrics, and forwards them to the base URLs of engines by a policy.
func (r router) arguments(python, address, metrics, policy string, engines ...string) []string {
	host, port, _ := net.SplitHostPort(address)
	_, metricsPort, _ := net.SplitHostPort(metrics)
	return slices.Concat([]string{python}, r.command,
		[]string{"--host", host, "--port", port, "--prometheus-host", host, "--prometheus-port", metricsPort, "--policy", policy, "--worker-urls"}, engines,
		r.options)
}

// ensureInstalled returns the path of Python in the router's virtual environment, which it creates
// in the user's cache directory if necessary. A new environment is renamed into place when
// complete. Scripts in its bin directory contain the old path and do not work; only Python does.
func (r router) ensureInstalled() (python string, err error) {
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
	staging, err := os.MkdirTemp(cache, "staging-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(staging)
	stagingPython := filepath.Join(staging, "bin", "python")
	for _, command := range [][]string{
		{"python3", "-m", "venv", staging},
		{stagingPython, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", installer},
		{stagingPython, "-m", "uv", "pip", "install", "--quiet", "--python", stagingPython, "--only-binary", ":all:", r.pin},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, firstLine(out))
		}
	}
	return python, os.Rename(staging, home)
}

// firstLine returns the first line of text, without surrounding space.
func firstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return line
}
