package scenes

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// processEnv makes ServeEngine serve an engine. Its value is NAME ADDRESS.
const processEnv = "BERTH_SCENES_ENGINE"

// ServeEngine serves an engine until stdin is closed if this process was started as one, and
// reports whether it was. The process should exit then.
func ServeEngine() bool {
	name, address, ok := strings.Cut(os.Getenv(processEnv), " ")
	if !ok {
		return false
	}
	e, err := startEngine(name, address, &arrivals{mirror: os.Stdout})
	if err != nil {
		fmt.Fprintln(os.Stderr, "engine:", err)
		os.Exit(1)
	}
	fmt.Println("ready", e.address)
	io.Copy(io.Discard, os.Stdin)
	e.Close()
	return true
}

// engineProcess is an engine as a process. Between begin and end of a fault, and after close, no
// process may run. Only the arrivals may be used concurrently.
type engineProcess struct {
	name    string
	address string
	log     *arrivals // as the engine records them
	stopped bool

	cmd    *exec.Cmd
	stdin  io.Closer
	output sync.WaitGroup // reads the process's output
}

// startProcess starts an engine's process on a free loopback port.
func startProcess(name string) (*engineProcess, error) {
	p := &engineProcess{name: name, address: FreeLoopback(), log: new(arrivals)}
	return p, p.start()
}

// start starts a process at the engine's address and returns when it serves.
func (p *engineProcess) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p.cmd = exec.Command(self, "-test.run=^$")
	p.cmd.Env = append(os.Environ(), processEnv+"="+p.name+" "+p.address)
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	lines, record, ready := bufio.NewScanner(out), p.log.reader(), false
	for !ready && lines.Scan() {
		p.address, ready = strings.CutPrefix(lines.Text(), "ready ")
	}
	if !ready {
		return errors.Join(errors.New("an engine's process ended at once"), p.cmd.Wait())
	}
	p.output.Go(func() {
		for lines.Scan() {
			record(lines.Text())
		}
	})
	return nil
}

// kill ends the process and returns when all of its output has been recorded.
func (p *engineProcess) kill() {
	p.cmd.Process.Kill()
	p.output.Wait()
	p.stdin.Close()
	p.cmd.Wait()
	p.cmd = nil
}

// Begin begins Killed or Stopped.
func (p *engineProcess) Begin(f Fault) error {
	switch f {
	case Killed:
		p.kill()
		return nil
	case Stopped:
		p.stopped = true
		return suspend(p.cmd.Process)
	}
	return fmt.Errorf("%q is not a fault of a process", f)
}

// End ends the fault and returns when the engine serves again.
func (p *engineProcess) End() error {
	if p.stopped {
		p.stopped = false
		return resume(p.cmd.Process)
	}
	return p.start()
}

// Close kills the process if one runs.
func (p *engineProcess) Close() {
	if p.cmd != nil {
		p.kill()
	}
}
