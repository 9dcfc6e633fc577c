package discovery

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
)

func TestFileFollowsItsContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "replicas")
	parsed := 0
	parse := func(data []byte) (set []llmserver.Endpoint, err error) {
		parsed++
		for name := range strings.FieldsSeq(string(data)) {
			if name == "bad" {
				return nil, errors.New(path + ":1:1: bad")
			}
			set = append(set, llmserver.Endpoint{ID: name, URL: "http://" + name})
		}
		return set, nil
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRun(t, func(log *slog.Logger) Source { return NewFile(path, parse, log) })
		defer r.stop()
		next := func(set, logged string) {
			t.Helper()
			time.Sleep(filePeriod)
			r.want(set)
			time.Sleep(time.Minute) // nothing more comes of the same content
			r.want("none")
			log := r.logged()
			if strings.Count(log, "\n") != min(len(logged), 1) || !strings.Contains(log, logged) {
				t.Errorf("logged %q; want one line with %q", log, logged)
			}
			if failed := r.source.Err() != nil; failed != (logged != "" && logged != "available again") {
				t.Errorf("the error is %v", r.source.Err())
			}
		}
		next("none", "cannot read "+path+": no such file or directory")
		write(path, "a b")
		next("a=a b=b", "available again")
		write(path, "bad")
		next("none", path+":1:1: bad")
		write(path, "a b")
		next("a=a b=b", "available again")
		target := path + ".target"
		write(target, "c")
		if err := errors.Join(os.Remove(path), os.Symlink(target, path)); err != nil {
			t.Fatal(err)
		}
		next("c=c", "")
		write(path, "")
		next("", "")
		if parsed != 5 {
			t.Errorf("the content was parsed %d times; want once for each", parsed)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		next("none", "cannot read")
	})
}
