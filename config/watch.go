package config

import (
	"context"
	"crypto/sha256"
	"os"
	"reflect"
	"slices"
	"time"
)

// A Watcher reloads a configuration file on changes and on signals.
type Watcher struct {
	Path    string
	Checks  Checks
	Every   time.Duration    // interval between two reads of the files; > 0
	Signals <-chan os.Signal // each reloads, changed or not; nil: none; never closed
	Running *Config          // the configuration in effect; nil: none

	// Reload is called with the results of [Load] after each load, by the goroutine of Run.
	Reload func(*Config, []Problem, error)
}

// Run reloads once per signal and once per change of the file or of a file it refers to. It blocks
// until ctx ends. A change made before Run counts if the configuration differs from Running.
//
// Run compares contents: a replaced symbolic link is noticed and a touched file ignored. The error
// of an unreadable file counts as content and is reported once.
func (w *Watcher) Run(ctx context.Context) {
	seen, c, warnings, err := w.load()
	if err != nil || !reflect.DeepEqual(c, w.Running) {
		w.Reload(c, warnings, err)
	}
	ticker := time.NewTicker(w.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.Signals:
		case <-ticker.C:
			if !slices.ContainsFunc(seen, fileContent.changed) {
				continue
			}
		}
		seen, c, warnings, err = w.load()
		w.Reload(c, warnings, err)
	}
}

// load loads the file and also returns the contents of all files read.
func (w *Watcher) load() (seen []fileContent, c *Config, warnings []Problem, err error) {
	c, warnings, err = load(w.Path, w.Checks, func(path string) ([]byte, error) {
		data, now, err := readContent(path)
		seen = append(seen, now)
		return data, err
	})
	return seen, c, warnings, err
}

// A fileContent is the hash of a file's content, or the read error.
type fileContent struct {
	path  string
	sum   [sha256.Size]byte
	error string
}

// readContent reads a file.
func readContent(path string) ([]byte, fileContent, error) {
	data, err := os.ReadFile(path)
	now := fileContent{path: path, sum: sha256.Sum256(data)}
	if err != nil {
		now.error = err.Error()
	}
	return data, now, err
}

// changed reports whether the file now has another content.
func (c fileContent) changed() bool {
	_, now, _ := readContent(c.path)
	return now != c
}
