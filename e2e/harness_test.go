package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth/e2e/scenes"
)

// waitTimeout bounds every wait. Only a defect or a stalled machine exhausts the timeout.
const waitTimeout = 3 * time.Minute

// binaryDir is the directory of the built binaries.
var binaryDir string

func TestMain(m *testing.M) {
	if address := os.Getenv(engineAddressEnv); address != "" {
		os.Exit(chaosEngine(address, os.Getenv(engineLimitEnv)))
	}
	if scenes.ServeEngine() {
		os.Exit(0)
	}
	var err error
	if binaryDir, err = os.MkdirTemp("", "berth-e2e-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(binaryDir)
		os.Exit(code)
	}))
}

// buildBerth builds the binary for all tests, once.
var buildBerth = sync.OnceValues(func() (binary string, err error) {
	binary = filepath.Join(binaryDir, "berth")
	args := slices.Concat([]string{"build", "-o", binary}, raceFlags, []string{"berth/cmd/berth"})
	c := exec.Command("go", args...)
	c.Env = append(os.Environ(), buildEnv...)
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building berth: %w\n%s", err, out)
	}
	return binary, walkSources()
})

// walkSources reads every directory of the module. go test caches a result until files or
// directories that the test opened change, and cannot know that the binary and the import table
// depend on all sources.
func walkSources() error {
	return filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != ".." {
			return filepath.SkipDir
		}
		return err
	})
}

// startBerth starts the binary with the given arguments.
func startBerth(t *testing.T, dir string, args ...string) *command {
	t.Helper()
	binary, err := buildBerth()
	if err != nil {
		t.Fatal(err)
	}
	return startCommand(t, dir, binary, args...)
}

// skipOrFail skips a test whose requirements are missing. With BERTH_E2E=all, the test fails
// instead.
func skipOrFail(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("BERTH_E2E") == "all" {
		t.Fatalf("BERTH_E2E=all: "+format, args...)
	}
	t.Skipf(format, args...)
}

// eventually polls until ok returns true. The test fails after waitTimeout.
func eventually(t *testing.T, condition string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(waitTimeout)
	defer deadline.Stop()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !ok() {
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatalf("timeout after %v: %s", waitTimeout, condition)
		}
	}
}

// waitClosed waits until a channel is closed. The test fails after waitTimeout.
func waitClosed(t *testing.T, condition string, done <-chan struct{}) {
	t.Helper()
	deadline := time.NewTimer(waitTimeout)
	defer deadline.Stop()
	select {
	case <-done:
	case <-deadline.C:
		t.Fatalf("timeout after %v: %s", waitTimeout, condition)
	}
}

// logBuffer is an io.Writer that keeps the output of a process. It is safe for concurrent use.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *logBuffer) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *logBuffer) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

func (j *logBuffer) contains(text string) bool { return strings.Contains(j.String(), text) }

// command is a process started by a test. Cleanup kills the process group.
type command struct {
	*exec.Cmd
	stdout, stderr logBuffer
	done           chan struct{}
}

// startCommand starts a program in the given directory, or the current one if dir is empty.
func startCommand(t *testing.T, dir, name string, args ...string) *command {
	t.Helper()
	c := &command{Cmd: exec.Command(name, args...), done: make(chan struct{})}
	c.Dir, c.Stdout, c.Stderr, c.SysProcAttr = dir, &c.stdout, &c.stderr, childProcAttr()
	c.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=10") // the default delays the exit by a second
	c.WaitDelay = 5 * time.Second                             // a grandchild may keep the pipes open
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.done)
		c.Wait()
	}()
	t.Cleanup(func() {
		c.kill()
		<-c.done
		if t.Failed() {
			t.Logf("output of %s %s:\n%s%s", filepath.Base(name), strings.Join(args, " "), tail(c.stdout.String(), 1000), tail(c.stderr.String(), 8000))
		}
	})
	return c
}

// kill kills the process and its descendants.
func (c *command) kill() { syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }

// signal sends a signal to the process.
func (c *command) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := c.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// waitExit waits for the end of the process and returns the exit status.
func (c *command) waitExit(t *testing.T) int {
	t.Helper()
	waitClosed(t, "the process has ended", c.done)
	return c.ProcessState.ExitCode()
}

// tail returns the last limit bytes of text, after an ellipsis if text was shortened.
func tail(text string, limit int) string {
	if len(text) > limit {
		return "…" + text[len(text)-limit:]
	}
	return text
}
