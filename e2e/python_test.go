package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const requirements = "python/requirements.txt"

func TestTheOfficialPythonSDKIsServed(t *testing.T) {
	t.Parallel()
	python := virtualenv(t)
	s := everyKind(t)
	c := run(t, "", python, "python/client.py", s.url+"/v1")
	if status := c.status(t); status != 0 {
		t.Fatalf("client.py ended with status %d", status)
	}
	over(t, s.engines["demo"], 1)
	over(t, s.engines["silent"], 1)
}

// virtualenv finds or makes the virtual environment with the pinned SDK, and returns its interpreter.
func virtualenv(t *testing.T) string {
	t.Helper()
	pins, err := os.ReadFile(requirements)
	if err != nil {
		t.Fatal(err)
	}
	version, err := exec.Command("python3", "--version").Output()
	if err != nil {
		missing(t, "there is no python3: %v", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		missing(t, "there is no place for a virtual environment: %v", err)
	}
	cache = filepath.Join(cache, "berth-e2e")
	sum := sha256.Sum256(append(version, pins...))
	home := filepath.Join(cache, "venv-"+hex.EncodeToString(sum[:6]))
	python := filepath.Join(home, "bin", "python")
	if _, err := os.Stat(python); err == nil {
		return python
	}
	if err := install(cache, home); err != nil {
		missing(t, "the Python SDK cannot be installed: %v", err)
	}
	return python
}

// install makes the environment aside and moves it to its place when it is complete; others may do the same meanwhile.
func install(cache, home string) error {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	aside, err := os.MkdirTemp(cache, "making-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(aside)
	for _, args := range [][]string{
		{"python3", "-m", "venv", aside},
		{filepath.Join(aside, "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", requirements},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", args, err, out)
		}
	}
	if err := os.Rename(aside, home); err != nil {
		if _, made := os.Stat(home); made != nil {
			return err
		}
	}
	return nil
}
