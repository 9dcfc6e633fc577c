package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	startTimeout = time.Minute      // from the start of a process until it is ready
	drainTimeout = 10 * time.Second // drain timeout of ingresses and agents
	exitTimeout  = 40 * time.Second // from the signal to the exit of a process
	minDowntime  = 300 * time.Millisecond
)

// unit is a position in the fleet with a name and an address, occupied by one process at a time.
// Only one goroutine at a time starts, stops and ends the process.
type unit struct {
	chaos   *chaos
	name    string
	ready   string            // URL with status 200 as soon as the process handles signals and requests
	command func() *exec.Cmd  // returns the command of the next process
	limit   *concurrencyLimit // of an agent's engine: drawn anew for each process of the agent

	current   atomic.Pointer[instance] // nil while it starts or ends
	kills     atomic.Int64
	instances int
	baseline  usage // usage before the first fault
}

// instance is one process of a unit.
type instance struct {
	*exec.Cmd
	unit *unit
	log  string // file with stdout and stderr
	done chan struct{}
}

// start starts a process and waits until it is ready. If the process exits before, start tries
// again: the port may be in use for a moment, or the configuration may be invalid on purpose.
func (u *unit) start() error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	for deadline := time.Now().Add(startTimeout); ; {
		p, err := u.launch()
		if err != nil {
			return err
		}
		for ended := false; !ended; {
			if resp, err := client.Get(u.ready); err == nil {
				resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					u.current.Store(p)
					return nil
				}
			}
			if time.Now().After(deadline) {
				p.Process.Kill()
				<-p.done
				return fmt.Errorf("%s was not ready within %v; its log ends with:\n%s", u.name, startTimeout, tail(p.text(), 2000))
			}
			select {
			case <-p.done:
				ended = true
			case <-time.After(10 * time.Millisecond):
			}
		}
		u.chaos.audit(p)
		time.Sleep(50 * time.Millisecond)
	}
}

// launch starts the next process without waiting until it is ready.
func (u *unit) launch() (*instance, error) {
	u.instances++
	p := &instance{Cmd: u.command(), unit: u, done: make(chan struct{})}
	p.log = filepath.Join(u.chaos.logs, fmt.Sprintf("%s-%d.log", u.name, u.instances))
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	if p.Env == nil {
		p.Env = os.Environ()
	}
	p.Env = append(p.Env, "GORACE=atexit_sleep_ms=10")
	p.Stdout, p.Stderr, p.SysProcAttr = log, log, childProcAttr()
	if err := p.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.done)
		p.Wait()
	}()
	return p, nil
}

// text returns the log of the process.
func (p *instance) text() string {
	text, _ := os.ReadFile(p.log)
	return string(text)
}

// end ends the process with SIGKILL or SIGTERM. After SIGTERM, the exit status must be 0.
func (u *unit) end(s syscall.Signal) {
	p := u.current.Swap(nil)
	if p == nil {
		return
	}
	select {
	case <-p.done:
		u.chaos.findings.add("a process exited unexpectedly", "%s: %v; its log ends with:\n%s", u.name, p.ProcessState, tail(p.text(), 3000))
	default:
	}
	if s == syscall.SIGKILL {
		u.kills.Add(1)
	}
	p.Process.Signal(s)
	select {
	case <-p.done:
		if s == syscall.SIGTERM && p.ProcessState.ExitCode() != 0 {
			u.chaos.findings.add("a drained process failed", "%s: %v; its log ends with:\n%s", u.name, p.ProcessState, tail(p.text(), 2000))
		}
	case <-time.After(exitTimeout):
		p.Process.Signal(syscall.SIGABRT) // for the stacks of its goroutines
		time.Sleep(time.Second)
		p.Process.Kill()
		<-p.done
		u.chaos.findings.add("a process did not end", "%s still ran %v after %v:\n%s", u.name, exitTimeout, s, tail(p.text(), 6000))
	}
	u.chaos.audit(p)
}

// restart ends the process and starts another after the downtime. The minimum downtime is longer
// than lingerBound, so that no request of the old process counts when the new one sends the first.
func (u *unit) restart(s syscall.Signal, downtime time.Duration) {
	u.end(s)
	time.Sleep(max(downtime, minDowntime))
	if u.limit != nil {
		u.limit.set(maxCapacity - max(0, u.instances%6-2)) // 4, 4, 4, 3, 2, 1, 4, …
	}
	if err := u.start(); err != nil {
		u.chaos.findings.add("a process did not start", "%v", err)
	}
}

// injectFault kills, drains or stops the process, and restarts or resumes it.
func (u *unit) injectFault(ctx context.Context, rng *rand.Rand) {
	p := u.current.Load()
	if p == nil {
		return // the process did not start; already reported
	}
	kind, _, _ := strings.Cut(u.name, "-")
	brief := time.Duration(50+rng.IntN(1450)) * time.Millisecond
	long := time.Duration(50+rng.IntN(3450)) * time.Millisecond
	switch n := rng.IntN(100); {
	case n < 30:
		u.chaos.counts.add("killed " + kind)
		u.restart(syscall.SIGKILL, brief)
	case n < 55:
		u.chaos.counts.add("drained " + kind)
		u.restart(syscall.SIGTERM, brief)
	default:
		u.chaos.counts.add("stopped " + kind)
		p.Process.Signal(syscall.SIGSTOP)
		pause(ctx, long)
		if n >= 90 {
			u.chaos.counts.add("killed while stopped " + kind)
			u.restart(syscall.SIGKILL, brief)
			return
		}
		p.Process.Signal(syscall.SIGCONT)
	}
}

// injectFaults injects faults into one member of a group at a time until ctx is done. A member is a
// single process, or an agent with its engine, of which one or both are affected.
func (c *chaos) injectFaults(ctx context.Context, rng *rand.Rand, group ...[]*unit) {
	defer c.restartExited(group)
	for pause(ctx, time.Duration(100+rng.IntN(500))*time.Millisecond) {
		c.gate.RLock()
		c.restartExited(group)
		member := group[rng.IntN(len(group))]
		if len(member) > 1 && rng.IntN(4) > 0 {
			i := rng.IntN(len(member))
			member = member[i : i+1]
		}
		var injecting sync.WaitGroup
		for _, u := range member {
			own := rand.New(rand.NewPCG(rng.Uint64(), 0))
			injecting.Go(func() { u.injectFault(ctx, own) })
		}
		injecting.Wait()
		c.gate.RUnlock()
	}
}

// restartExited restarts processes that have exited unexpectedly, which restart reports.
func (c *chaos) restartExited(group [][]*unit) {
	for _, u := range slices.Concat(group...) {
		p := u.current.Load()
		if p == nil {
			continue
		}
		select {
		case <-p.done:
			u.restart(syscall.SIGKILL, 0)
		default:
		}
	}
}

// pause waits for d and reports whether ctx is not done.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// usage is the number of goroutines and open files of a process.
type usage struct{ goroutines, descriptors int }

// descriptors returns the number of open files of the process, 0 without /proc.
func (p *instance) descriptors() int {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Process.Pid))
	return len(entries)
}

// freeAddress returns an address with a free port for repeated use. The port is below the system's
// range of ephemeral ports, so that no outgoing connection uses it between two processes.
func freeAddress(t *testing.T, rng *rand.Rand) string {
	t.Helper()
	for range 1000 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 12000+rng.IntN(20000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
	t.Fatal("no free port between 12000 and 32000")
	return ""
}
