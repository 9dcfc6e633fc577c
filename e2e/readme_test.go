package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// shellBlock matches a shell block of a document. Its groups are the role that the comment before
// it gives, the reason after the role, and the commands.
var shellBlock = regexp.MustCompile("(?ms)(?:^<!-- e2e:(\\w+)(?:: ([^\n]+))? -->\\s*)?^```sh\n(.*?)^```")

// documents returns the paths of all Markdown files that are written for readers of the repository.
func documents(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"../*.md", "../docs/*.md"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %v, %v", pattern, paths, err)
		}
		found = append(found, paths...)
	}
	return found
}

// readDocument returns the text of a document.
func readDocument(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// readme returns the shell blocks of all documents by role.
func readme(t *testing.T) map[string][]string {
	t.Helper()
	blocks := map[string][]string{}
	for _, path := range documents(t) {
		for _, b := range shellBlock.FindAllStringSubmatch(readDocument(t, path), -1) {
			blocks[b[1]] = append(blocks[b[1]], b[3])
		}
	}
	return blocks
}

// Each shell block of each document has a role that a test runs, or a reason for not being run.
func TestReadmeShellBlocksAreRunOrSayWhyNot(t *testing.T) {
	t.Parallel()
	for _, path := range documents(t) {
		text := readDocument(t, path)
		found := shellBlock.FindAllStringSubmatch(text, -1)
		if fences := strings.Count(text, "```sh\n"); len(found) != fences {
			t.Errorf("%s has %d shell blocks, of which %d are recognized", path, fences, len(found))
		}
		for _, b := range found {
			role, reason := b[1], b[2]
			switch {
			case slices.Contains([]string{"run", "curl", "test", "aiperf"}, role) && reason == "":
			case role == "make" && reason == "": // TestMakefileTargetsOfDocumentsExist
			case role == "not" && len(strings.Fields(reason)) > 3:
			default:
				t.Errorf("%s: this block has the role %q and the reason %q; put <!-- e2e:ROLE --> before it with a role that a test runs, or <!-- e2e:not: WHY -->\n%s", path, role, reason, b[3])
			}
		}
	}
}

// The test is not parallel, because it uses the well-known ports.
func TestReadmeCommandsWorkInAFreshCopy(t *testing.T) {
	commands := readme(t)
	if len(commands["run"]) != 1 || len(commands["curl"]) == 0 {
		t.Fatalf("the documents mark %d blocks as run and %d as curl, want one and some", len(commands["run"]), len(commands["curl"]))
	}
	if text := readDocument(t, "../README.md"); !strings.Contains(text, commands["run"][0]) || !strings.Contains(text, commands["curl"][0]) {
		t.Error("the README does not have the blocks that are marked as run and curl")
	}
	tree := t.TempDir()
	copyTree(t, "..", tree)
	requirePorts(t)
	goTool(t, tree, "build", "-o", os.DevNull, "./cmd/berth") // compile before the timeouts start
	b := waitListening(t, startCommand(t, tree, "sh", "-c", commands["run"][0]))
	for _, lines := range commands["curl"] {
		got := curl(t, lines)
		if got == "" || strings.Contains(got, `"error"`) {
			t.Errorf("%s\nresponse %q", lines, got)
		}
	}
	if err := syscall.Kill(-b.Process.Pid, syscall.SIGTERM); err != nil { // berth is a child of a shell and go run
		t.Fatal(err)
	}
	waitClosed(t, "berth has exited", b.done)
}

func TestReadmeTestCommandNamesPackagesThatExist(t *testing.T) {
	t.Parallel()
	commands := readme(t)["test"]
	if len(commands) != 1 {
		t.Fatalf("the documents mark %d blocks as test, want one", len(commands))
	}
	words := strings.Fields(commands[0])
	patterns := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return !strings.HasPrefix(w, "./") })
	if !strings.Contains(commands[0], "go test ") || len(patterns) == 0 {
		t.Fatalf("%q runs no tests", commands[0])
	}
	if goTool(t, "..", append([]string{"list"}, patterns...)...) == "" {
		t.Errorf("no packages match %v", patterns)
	}
}

// copyTree copies a directory without hidden files.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		hidden := name != "." && strings.HasPrefix(entry.Name(), ".")
		switch {
		case hidden && entry.IsDir():
			return filepath.SkipDir
		case entry.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		case hidden || !entry.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), data, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
}
