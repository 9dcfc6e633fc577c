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
)

// patience bounds every wait. Only a broken product, or a machine that stands still, uses it up.
const patience = 3 * time.Minute

// scratch is where the binary is.
var scratch string

func TestMain(m *testing.M) {
	if address := os.Getenv(engineAddressEnv); address != "" {
		os.Exit(chaosEngine(address, os.Getenv(engineLimitEnv)))
	}
	var err error
	if scratch, err = os.MkdirTemp("", "berth-e2e-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(scratch)
		os.Exit(code)
	}))
}

// build makes the berth that all tests run, once.
var build = sync.OnceValues(func() (binary string, err error) {
	binary = filepath.Join(scratch, "berth")
	args := slices.Concat([]string{"build", "-o", binary}, raceFlags, []string{"berth/cmd/berth"})
	c := exec.Command("go", args...)
	c.Env = append(os.Environ(), buildEnv...)
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("berth does not build: %w\n%s", err, out)
	}
	return binary, walkSources()
})

// walkSources looks at every directory of the module. It is for go test, which forgets the result of a test when what
// the test looked at changes: that the binary and the tables of imports are made of all sources it cannot know.
func walkSources() error {
	return filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != ".." {
			return filepath.SkipDir
		}
		return err
	})
}

// runBerth starts the binary.
func runBerth(t *testing.T, dir string, args ...string) *command {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return run(t, dir, binary, args...)
}

// missing says that a test cannot run here. That is a skip for a developer and a failure for whoever asked for all.
func missing(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("BERTH_E2E") == "all" {
		t.Fatalf("BERTH_E2E=all: "+format, args...)
	}
	t.Skipf(format, args...)
}

// eventually waits until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !ok() {
		select {
		case <-look.C:
		case <-deadline.C:
			t.Fatalf("waited %v in vain: %s", patience, what)
		}
	}
}

// within waits for a channel to be closed.
func within(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case <-done:
	case <-deadline.C:
		t.Fatalf("waited %v in vain: %s", patience, what)
	}
}

// journal keeps what a process writes.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

func (j *journal) has(text string) bool { return strings.Contains(j.String(), text) }

// command is a process that the test began and that does not outlive it.
type command struct {
	*exec.Cmd
	out, log journal // stdout and stderr
	done     chan struct{}
}

// run starts a program in a directory, this one if empty.
func run(t *testing.T, dir, name string, args ...string) *command {
	t.Helper()
	c := &command{Cmd: exec.Command(name, args...), done: make(chan struct{})}
	c.Dir, c.Stdout, c.Stderr, c.SysProcAttr = dir, &c.out, &c.log, leashed()
	c.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=10") // the race detector lingers for a second
	c.WaitDelay = 5 * time.Second                             // for a grandchild that keeps the pipes
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
			t.Logf("%s %s said:\n%s%s", filepath.Base(name), strings.Join(args, " "), tail(c.out.String(), 1000), tail(c.log.String(), 8000))
		}
	})
	return c
}

// kill ends the process and all that it began.
func (c *command) kill() { syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }

func (c *command) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := c.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// status waits for the end of the process.
func (c *command) status(t *testing.T) int {
	t.Helper()
	within(t, "the process ends", c.done)
	return c.ProcessState.ExitCode()
}

// tail is the end of a text, which is where the trouble is.
func tail(text string, most int) string {
	if len(text) > most {
		return "…" + text[len(text)-most:]
	}
	return text
}
