package e2e

import (
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// notYet has the files and packages that documents may name before they exist: packages that are
// about to move. An entry that exists, or that no document names, fails the test.
var notYet []string

var (
	codeSpan    = regexp.MustCompile("`([^`\n]+)`")
	codeFence   = regexp.MustCompile("(?ms)^```.*?^```")
	testName    = regexp.MustCompile(`^(?:Test|Fuzz|Benchmark)[A-Z]\w+$`)
	sourcePath  = regexp.MustCompile(`^(?:\.\./)?(?:\.ci|cmd|config|deploy|docs|e2e|ingress|internal|llmserver|routers|streaming)(?:/[\w.*{},-]+)*/?$`)
	link        = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading     = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	declared    = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
)

// declaredTests returns the names of all tests, fuzz targets and benchmarks of the repository.
func declaredTests(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir("..", func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && entry.Name() != ".." {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, d := range declared.FindAllSubmatch(text, -1) {
			names[string(d[1])] = true
		}
		return nil
	})
	if err != nil || len(names) < 100 {
		t.Fatalf("%d tests found: %v", len(names), err)
	}
	return names
}

// spans returns what a document writes as `code`, outside of code blocks.
func spans(text string) (all []string) {
	for _, s := range codeSpan.FindAllStringSubmatch(codeFence.ReplaceAllString(text, ""), -1) {
		all = append(all, s[1])
	}
	return all
}

// Every test named in a document exists.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	t.Parallel()
	tests := declaredTests(t)
	missing, named := map[string][]string{}, 0
	for _, file := range documents(t) {
		for _, s := range spans(readDocument(t, file)) {
			if !testName.MatchString(s) {
				continue
			}
			if named++; !tests[s] {
				missing[file] = append(missing[file], s)
			}
		}
	}
	if named < 50 {
		t.Errorf("the documents name %d tests, want at least 50", named)
	}
	for _, file := range slices.Sorted(maps.Keys(missing)) {
		t.Errorf("%s names %d tests that do not exist; use their new names:\n\t%s", file, len(missing[file]), strings.Join(missing[file], "\n\t"))
	}
}

func TestDocumentsNameFilesAndPackagesThatExist(t *testing.T) {
	t.Parallel()
	missing, used, named := map[string][]string{}, map[string]bool{}, 0
	for _, file := range documents(t) {
		for _, s := range spans(readDocument(t, file)) {
			s = strings.TrimSuffix(strings.TrimPrefix(s, "./"), "/")
			if !sourcePath.MatchString(s) {
				continue
			}
			named++
			if found, err := filepath.Glob(filepath.Join("..", s)); err == nil && len(found) > 0 {
				continue
			}
			if slices.Contains(notYet, s) {
				used[s] = true
				continue
			}
			missing[file] = append(missing[file], s)
		}
	}
	if named < 50 {
		t.Errorf("the documents name %d files and packages, want at least 50", named)
	}
	for _, file := range slices.Sorted(maps.Keys(missing)) {
		t.Errorf("%s names %d files or packages that do not exist:\n\t%s", file, len(missing[file]), strings.Join(missing[file], "\n\t"))
	}
	for _, name := range notYet {
		if !used[name] {
			t.Errorf("%s exists, or no document names it: remove it from notYet", name)
		}
	}
}

// Links between documents lead to files and headings that exist.
func TestDocumentsLinkToFilesAndHeadingsThatExist(t *testing.T) {
	t.Parallel()
	for _, file := range documents(t) {
		for _, l := range link.FindAllStringSubmatch(codeFence.ReplaceAllString(readDocument(t, file), ""), -1) {
			target, err := url.Parse(l[1])
			if err != nil {
				t.Errorf("%s: the link %s: %v", file, l[1], err)
				continue
			}
			if target.Scheme != "" {
				continue
			}
			to := file
			if target.Path != "" {
				to = path.Join(path.Dir(file), target.Path)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s, which does not exist", file, l[1])
				continue
			}
			if target.Fragment != "" && !slices.Contains(anchors(readDocument(t, to)), target.Fragment) {
				t.Errorf("%s links to %s, and %s has no such heading", file, l[1], to)
			}
		}
	}
}

// anchors returns the names by which the headings of a document can be linked to.
func anchors(text string) (all []string) {
	for _, h := range heading.FindAllStringSubmatch(codeFence.ReplaceAllString(text, ""), -1) {
		name := notInAnchor.ReplaceAllString(strings.ToLower(h[1]), "")
		all = append(all, strings.ReplaceAll(strings.TrimSpace(name), " ", "-"))
	}
	return all
}

// importRow is a row of the table of imports in docs/architecture.md: a package, and those that it
// may import.
var importRow = regexp.MustCompile("(?m)^\\| `([\\w/]+)` \\|([^|]*)\\|")

// The import table of the documents equals mayImport.
func TestDocumentsHaveTheTableOfImports(t *testing.T) {
	t.Parallel()
	_, section, found := strings.Cut(readDocument(t, "../docs/architecture.md"), "\n### Imports\n")
	if !found {
		t.Fatal("docs/architecture.md has no section Imports")
	}
	section, _, _ = strings.Cut(section, "\n#")
	rows := map[string][]string{}
	for _, row := range importRow.FindAllStringSubmatch(section, -1) {
		imports := spans(row[2])
		if strings.TrimSpace(row[2]) == "all" {
			imports = []string{"*"}
		}
		rows[row[1]] = slices.Sorted(slices.Values(imports))
	}
	for name := range rows {
		if _, known := mayImport[name]; !known && !slices.Contains(notYet, name) {
			t.Errorf("the table of imports has a row of %s, which mayImport does not have", name)
		}
	}
	for name, imports := range mayImport {
		row, shown := rows[name]
		row = slices.DeleteFunc(row, func(imported string) bool { return slices.Contains(notYet, imported) })
		if want := slices.Sorted(slices.Values(imports)); !shown || !slices.Equal(row, want) {
			t.Errorf("docs/architecture.md has %v in the row of %s in the table of imports; mayImport has %v", row, name, want)
		}
	}
}

// makeTarget is a target of the Makefile with the help text after it.
var makeTarget = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):.*?## `)

// The make targets used in documents exist, with a line of help each.
func TestMakefileTargetsOfDocumentsExist(t *testing.T) {
	t.Parallel()
	targets := map[string]bool{}
	for _, m := range makeTarget.FindAllStringSubmatch(readDocument(t, "../Makefile"), -1) {
		targets[m[1]] = true
	}
	for _, want := range []string{"help", "test", "test-fast", "lint", "fuzz", "bench", "e2e", "build"} {
		if !targets[want] {
			t.Errorf("the Makefile has no target %s with a line of help", want)
		}
	}
	for _, file := range documents(t) {
		for _, s := range spans(readDocument(t, file)) {
			if name, is := strings.CutPrefix(s, "make "); is && !targets[strings.Fields(name)[0]] {
				t.Errorf("%s names make %s, which the Makefile does not have", file, name)
			}
		}
		for _, b := range shellBlock.FindAllStringSubmatch(readDocument(t, file), -1) {
			for line := range strings.Lines(b[3]) {
				if words := strings.Fields(line); len(words) > 1 && words[0] == "make" && !targets[words[1]] {
					t.Errorf("%s: %q: the Makefile has no such target", file, strings.TrimSpace(line))
				}
			}
		}
	}
}
