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

// A watch is a running Watcher and what it told: the first model's id, or "error".
type watch struct {
	path   string
	hup    chan os.Signal
	told   []string
	cancel context.CancelFunc
}

// model is a file with one model.
func model(id string) string {
	return fmt.Sprintf("llm_configs: [{model_loading_config: {model_id: %s}, simulated: {}}]\n", id)
}

// start watches path as one does who has just loaded it. It must run in a synctest bubble.
func start(t *testing.T, path string) *watch {
	t.Helper()
	running, _, err := Load(path, Checks{})
	if err != nil {
		t.Fatal(err)
	}
	return startWith(t, path, running)
}

func startWith(t *testing.T, path string, running *Config) *watch {
	ctx, cancel := context.WithCancel(t.Context())
	w := &watch{path: path, hup: make(chan os.Signal, 1), cancel: cancel}
	watcher := Watcher{
		Path: path, Every: every, Signals: w.hup, Running: running,
		Reload: func(c *Config, _ []Problem, err error) {
			if err != nil {
				w.told = append(w.told, "error")
				return
			}
			w.told = append(w.told, c.Models[0].ID)
		},
	}
	go watcher.Run(ctx)
	synctest.Wait()
	return w
}

// later lets n looks happen and compares all that was told since the last time.
func (w *watch) later(t *testing.T, n int, want ...string) {
	t.Helper()
	time.Sleep(time.Duration(n) * every)
	synctest.Wait()
	if !slices.Equal(w.told, want) {
		t.Errorf("told %v, want %v", w.told, want)
	}
	w.told = nil
}

// watched runs a test with a fresh file that holds the model "a".
func watched(t *testing.T, test func(t *testing.T, path string)) {
	path := filepath.Join(t.TempDir(), "berth.yaml")
	write(t, path, model("a"))
	synctest.Test(t, func(t *testing.T) { test(t, path) })
}

func TestAChangeIsLoadedOnce(t *testing.T) {
	watched(t, func(t *testing.T, path string) {
		w := start(t, path)
		w.later(t, 3)
		write(t, path, model("b"))
		w.later(t, 3, "b")
		write(t, path, "llm_configs: []")
		w.later(t, 3, "error")
		write(t, path, model("b"))
		w.later(t, 3, "b")
	})
}

func TestATouchedFileIsNotLoaded(t *testing.T) {
	watched(t, func(t *testing.T, path string) {
		w := start(t, path)
		write(t, path, model("a"))
		if err := os.Chtimes(path, time.Time{}, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		w.later(t, 3)
	})
}

func TestASwappedLinkIsSeen(t *testing.T) {
	watched(t, func(t *testing.T, path string) {
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
		w := start(t, filepath.Join(dir, "data", "berth.yaml"))
		point("two")
		w.later(t, 3, "two")
	})
}

func TestAFileThatTheFileNamesCounts(t *testing.T) {
	watched(t, func(t *testing.T, path string) {
		named := filepath.Join(filepath.Dir(path), "model.yaml")
		write(t, named, "{model_loading_config: {model_id: x}, simulated: {}}")
		write(t, path, "llm_configs: [model.yaml]")
		w := start(t, path)
		write(t, named, "{model_loading_config: {model_id: y}, simulated: {}}")
		w.later(t, 3, "y")
		write(t, path, model("z"))
		w.later(t, 3, "z")
		write(t, named, "no longer named")
		w.later(t, 3)
	})
}

func TestAVanishedFileIsToldOnceAndItsReturnToo(t *testing.T) {
	watched(t, func(t *testing.T, path string) {
		w := start(t, path)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		w.later(t, 5, "error")
		write(t, path, "")
		w.later(t, 5, "error")
		write(t, path, model("a"))
		w.later(t, 5, "a")
	})
}

func TestASignalLoadsAtOnceChangedOrNot(t *testing.T) {
	watched(t, func(t *testing.T, path string) {
		w := start(t, path)
		w.hup <- os.Interrupt
		w.later(t, 0, "a")
		write(t, path, model("b"))
		w.hup <- os.Interrupt
		w.later(t, 3, "b")
	})
}

func TestAChangeBeforeTheStartCounts(t *testing.T) {
	watched(t, func(t *testing.T, path string) {
		running, _, err := Load(path, Checks{})
		if err != nil {
			t.Fatal(err)
		}
		write(t, path, model("b"))
		startWith(t, path, running).later(t, 3, "b")
	})
}

func TestTheFirstLoadIsToldIfNothingRuns(t *testing.T) {
	watched(t, func(t *testing.T, path string) {
		startWith(t, path, nil).later(t, 3, "a")
	})
}

func TestNothingIsToldAfterTheEnd(t *testing.T) {
	watched(t, func(t *testing.T, path string) {
		w := start(t, path)
		write(t, path, model("b"))
		w.cancel()
		synctest.Wait()
		w.hup <- os.Interrupt
		w.later(t, 3)
	})
}
