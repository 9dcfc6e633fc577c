package config

import (
	"context"
	"crypto/sha256"
	"os"
	"reflect"
	"slices"
	"time"
)

// A Watcher loads a file again whenever it should.
type Watcher struct {
	Path    string
	Checks  Checks
	Every   time.Duration    // from one look at the files to the next; > 0
	Signals <-chan os.Signal // each loads again, changed or not; nil: none; must not be closed
	Running *Config          // what was loaded before; nil: nothing was

	// Reload is told the result of each load, as [Load] returns it. Run calls it, one call at a time.
	Reload func(*Config, []Problem, error)
}

// Run loads once per signal and once per change of the content of the file or of a file that it names, until
// ctx ends. A change that was made before Run began counts if it makes the configuration differ from Running.
// Content is what is compared, so a link that is swapped underneath is seen and a touched file is not; a file
// that cannot be read counts as content too, so that its error is told once.
func (w *Watcher) Run(ctx context.Context) {
	seen, c, warnings, err := w.load()
	if err != nil || !reflect.DeepEqual(c, w.Running) {
		w.Reload(c, warnings, err)
	}
	look := time.NewTicker(w.Every)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.Signals:
		case <-look.C:
			if !slices.ContainsFunc(seen, content.changed) {
				continue
			}
		}
		seen, c, warnings, err = w.load()
		w.Reload(c, warnings, err)
	}
}

// load also returns what it read, which is exactly what the result was made of.
func (w *Watcher) load() (seen []content, c *Config, warnings []Problem, err error) {
	c, warnings, err = load(w.Path, w.Checks, func(path string) ([]byte, error) {
		data, now, err := look(path)
		seen = append(seen, now)
		return data, err
	})
	return seen, c, warnings, err
}

// A content is what a look at a file found.
type content struct {
	path  string
	sum   [sha256.Size]byte
	error string
}

func look(path string) ([]byte, content, error) {
	data, err := os.ReadFile(path)
	now := content{path: path, sum: sha256.Sum256(data)}
	if err != nil {
		now.error = err.Error()
	}
	return data, now, err
}

func (c content) changed() bool {
	_, now, _ := look(c.path)
	return now != c
}
