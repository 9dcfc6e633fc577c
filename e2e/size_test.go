package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// A few calls, of text/template among others, keep the linker from removing unused methods. The
// binary is a third larger then, and nothing else changes.
func TestReadmeStatesTheSizeOfTheBinary(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	stated := regexp.MustCompile(`go build (-tags \S+) (-trimpath) (-ldflags) "([^"]*)" \./cmd/berth\s+# (\d+) MB`).FindSubmatch(readme)
	if stated == nil {
		t.Fatal("README.md has no build command with a size in MB")
	}
	megabytes, _ := strconv.Atoi(string(stated[5]))
	binary := filepath.Join(t.TempDir(), "berth")
	t.Logf("%s", goTool(t, "..", "build", "-tags", "nomsgpack", "-trimpath", "-ldflags", string(stated[4]), "-o", binary, "./cmd/berth"))
	info, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	if got := float64(info.Size()) / 1e6; got < float64(megabytes)-1 || got > float64(megabytes)+1 {
		t.Errorf("the binary has %.1f MB; README.md says %d", got, megabytes)
	}
}
