package streaming

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// recordings returns the recorded event streams by name. testdata/README.md names their origin.
var recordings = sync.OnceValues(func() (map[string]string, error) {
	f, err := os.Open(filepath.Join("testdata", "recordings.tar.gz"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for archive := tar.NewReader(unzipped); ; {
		file, err := archive.Next()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			return nil, err
		}
		if len(text) > 0 {
			all[filepath.Base(file.Name)] = string(text)
		}
	}
})

// streams returns event streams by name: the recorded ones, one of unusual events, and each with
// other line ends.
func streams(t testing.TB) map[string]string {
	t.Helper()
	recorded, err := recordings()
	if err != nil {
		t.Fatal(err)
	}
	if len(recorded) != 21 {
		t.Fatalf("%d recorded streams, want 21", len(recorded))
	}
	all := map[string]string{
		"odd": "\n: ping\n\nretry: 3\n\nevent: a\ndata: 1\ndata: 2\r\n\r\nid: 7\r\rdata:\n\r\n" + chunk + "data: [DONE]\n\n",
		"cut": chunk + chunk + `data: {"id":"chatc`,
	}
	for name, text := range recorded {
		all[name] = text
	}
	for name, text := range all {
		if strings.Contains(text, "\r") {
			continue
		}
		all[name+" with CRLF"] = strings.ReplaceAll(text, "\n", "\r\n")
		all[name+" with CR"] = strings.ReplaceAll(text, "\n", "\r")
	}
	return all
}
