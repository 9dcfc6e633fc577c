package config

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

const every = 2 * time.Second

// A runningWatcher is a running Watcher and its reloads: the id of the first model, or "error".
type runningWatcher struct {
	path    string
	hup     chan os.Signal
	reloads []string
	cancel  context.CancelFunc
}

// model returns a file with one model.
func model(id string) string {
	return fmt.Sprintf("llm_configs: [{model_loading_config: {model_id: %s}, simulated: {}}]\n", id)
}

// startWatcher loads path and watches it. It must run in a synctest bubble.
func startWatcher(t *testing.T, path string) *runningWatcher {
	t.Helper()
	running, _, err := Load(path, Checks{})
	if err != nil {
		t.Fatal(err)
	}
	return startWatcherWith(t, path, running)
}

func startWatcherWith(t *testing.T, path string, running *Config) *runningWatcher {
	ctx, cancel := context.WithCancel(t.Context())
	w := &runningWatcher{path: path, hup: make(chan os.Signal, 1), cancel: cancel}
	watcher := Watcher{
		Path: path, Every: every, Signals: w.hup, Running: running,
		Reload: func(c *Config, _ []Problem, err error) {
			if err != nil {
				w.reloads = append(w.reloads, "error")
				return
			}
			w.reloads = append(w.reloads, c.Models[0].ID)
		},
	}
	go watcher.Run(ctx)
	synctest.Wait()
	return w
}

// expect waits for n intervals and compares the reloads since the last call.
func (w *runningWatcher) expect(t *testing.T, n int, want ...string) {
	t.Helper()
	time.Sleep(time.Duration(n) * every)
	synctest.Wait()
	if !slices.Equal(w.reloads, want) {
		t.Errorf("reloads %v, want %v", w.reloads, want)
	}
	w.reloads = nil
}

// withFile runs a test with a new file that has the model "a".
func withFile(t *testing.T, test func(t *testing.T, path string)) {
	path := filepath.Join(t.TempDir(), "berth.yaml")
	write(t, path, model("a"))
	synctest.Test(t, func(t *testing.T) { test(t, path) })
}

func TestWatcherLoadsAChangeOnce(t *testing.T) {
	withFile(t, func(t *testing.T, path string) {
		w := startWatcher(t, path)
		w.expect(t, 3)
		write(t, path, model("b"))
		w.expect(t, 3, "b")
		write(t, path, "llm_configs: []")
		w.expect(t, 3, "error")
		write(t, path, model("b"))
		w.expect(t, 3, "b")
	})
}

func TestWatcherIgnoresTouchedFile(t *testing.T) {
	withFile(t, func(t *testing.T, path string) {
		w := startWatcher(t, path)
		write(t, path, model("a"))
		if err := os.Chtimes(path, time.Time{}, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		w.expect(t, 3)
	})
}

func TestWatcherSeesReplacedSymlink(t *testing.T) {
	withFile(t, func(t *testing.T, path string) {
		dir := t.TempDir()
		point := func(id string) {
			if err := os.Mkdir(filepath.Join(dir, id), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, id, "berth.yaml"), model(id))
			fresh := filepath.Join(dir, "fresh")
			if err := os.Symlink(id, fresh); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(fresh, filepath.Join(dir, "data")); err != nil {
				t.Fatal(err)
			}
		}
		point("one")
		w := startWatcher(t, filepath.Join(dir, "data", "berth.yaml"))
		point("two")
		w.expect(t, 3, "two")
	})
}

func TestWatcherSeesChangedModelFile(t *testing.T) {
	withFile(t, func(t *testing.T, path string) {
		named := filepath.Join(filepath.Dir(path), "model.yaml")
		write(t, named, "{model_loading_config: {model_id: x}, simulated: {}}")
		write(t, path, "llm_configs: [model.yaml]")
		w := startWatcher(t, path)
		write(t, named, "{model_loading_config: {model_id: y}, simulated: {}}")
		w.expect(t, 3, "y")
		write(t, path, model("z"))
		w.expect(t, 3, "z")
		write(t, named, "no longer named")
		w.expect(t, 3)
	})
}

func TestWatcherReportsMissingFileOnceAndItsReturn(t *testing.T) {
	withFile(t, func(t *testing.T, path string) {
		w := startWatcher(t, path)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		w.expect(t, 5, "error")
		write(t, path, "")
		w.expect(t, 5, "error")
		write(t, path, model("a"))
		w.expect(t, 5, "a")
	})
}

func TestWatcherReloadsOnSignal(t *testing.T) {
	withFile(t, func(t *testing.T, path string) {
		w := startWatcher(t, path)
		w.hup <- os.Interrupt
		w.expect(t, 0, "a")
		write(t, path, model("b"))
		w.hup <- os.Interrupt
		w.expect(t, 3, "b")
	})
}

func TestWatcherSeesChangeBeforeStart(t *testing.T) {
	withFile(t, func(t *testing.T, path string) {
		running, _, err := Load(path, Checks{})
		if err != nil {
			t.Fatal(err)
		}
		write(t, path, model("b"))
		startWatcherWith(t, path, running).expect(t, 3, "b")
	})
}

func TestWatcherReportsFirstLoadWithoutRunning(t *testing.T) {
	withFile(t, func(t *testing.T, path string) {
		startWatcherWith(t, path, nil).expect(t, 3, "a")
	})
}

func TestWatcherStopsAtContextEnd(t *testing.T) {
	withFile(t, func(t *testing.T, path string) {
		w := startWatcher(t, path)
		write(t, path, model("b"))
		w.cancel()
		synctest.Wait()
		w.hup <- os.Interrupt
		w.expect(t, 3)
	})
}
