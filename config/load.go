package config

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Parse returns the effective configuration that data describes; name stands for the file in problems. The
// error is a [Problems] that lists everything wrong; warnings come with or without one. An entry of
// llm_configs cannot name a file here.
func Parse(data []byte, name string, c Checks) (*Config, []Problem, error) {
	return parse(data, name, c, nil)
}

// Load parses the file at path, and the files that its llm_configs name relative to it. See [Parse].
func Load(path string, c Checks) (*Config, []Problem, error) {
	return load(path, c, os.ReadFile)
}

func load(path string, c Checks, open opener) (*Config, []Problem, error) {
	data, err := open(path)
	if err != nil {
		return nil, nil, Problems{{File: path, Message: "cannot be read: " + reason(err)}}
	}
	return parse(data, path, c, open)
}

// An opener returns the content of a file. A nil one has none.
type opener func(path string) ([]byte, error)

func newReader(c Checks, open opener) *reader {
	return &reader{
		checks: c,
		open:   open,
		config: &Config{HTTP: defaultHTTP(), Admin: defaultAdmin(), Session: defaultSession()},
		names:  make(map[string]position),
		urls:   make(map[string]claim),

		keyNames:  make(map[string]bool),
		keyHashes: make(map[[sha256.Size]byte]string),
	}
}

func parse(data []byte, name string, c Checks, open opener) (*Config, []Problem, error) {
	r := newReader(c, open)
	if root := r.document(data, name); root != nil {
		r.object(r.file(), rayFile...)(root)
		r.checkFile(root)
	}
	r.reportIdle()
	if len(r.problems) > 0 {
		return nil, r.warnings.sorted(), r.problems.sorted()
	}
	return r.config, r.warnings.sorted(), nil
}

// modelOrFile reads an entry of llm_configs: a model, or the path of a file that holds one.
func (r *reader) modelOrFile(n *node) {
	if n.kind != text {
		r.model(n)
		return
	}
	if r.open == nil {
		r.fail(n.at, "a model in a file of its own can only be found from a file; write the model here")
		return
	}
	if root := r.include(n); root != nil {
		r.model(root)
	}
}

// include returns the one value of the file that a text names, or reports why there is none.
func (r *reader) include(n *node) *node {
	data, path, ok := r.content(n)
	if !ok {
		return nil
	}
	return r.document(data, path)
}

// beside is the path that a text gives, relative to the file that it stands in.
func (n *node) beside() string {
	if filepath.IsAbs(n.text) {
		return n.text
	}
	return filepath.Join(filepath.Dir(n.at.file), n.text)
}

// content reads the file that a text names.
func (r *reader) content(n *node) (data []byte, path string, ok bool) {
	path = n.beside()
	data, err := r.open(path)
	if err != nil {
		r.fail(n.at, "%s cannot be read: %s", display(path), reason(err))
		return nil, "", false
	}
	return data, path, true
}

// document returns the one value that a file holds, or reports why there is none.
func (r *reader) document(data []byte, file string) *node {
	start := position{file, 1, 1}
	if !utf8.Valid(data) {
		r.fail(start, "this file is not text in UTF-8; save it as such")
		return nil
	}
	parsed, err := parser.ParseBytes(bytes.TrimPrefix(data, []byte("\ufeff")), 0, parser.AllowDuplicateMapKey())
	t := tree{file: file, fail: r.fail, anchors: make(map[string]anchor)}
	if syntax, ok := errors.AsType[yaml.Error](err); ok {
		r.fail(t.position(syntax.GetToken()), "this is not YAML: %s", syntax.GetMessage())
		return nil
	} else if err != nil {
		r.fail(start, "this is not YAML: %v", err)
		return nil
	}
	var bodies []ast.Node
	for _, document := range parsed.Docs {
		if _, directive := document.Body.(*ast.DirectiveNode); document.Body != nil && !directive {
			bodies = append(bodies, document.Body)
		}
	}
	switch len(bodies) {
	case 0:
		r.fail(start, "this file is empty; describe at least one model")
		return nil
	case 1:
		return t.build(bodies[0]).called("this file", start)
	}
	r.fail(t.position(bodies[1].GetToken()), "this file holds more than one document; keep the first or split the file")
	return nil
}

// reason is an error without the path, which the problem names anyway.
func reason(err error) string {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err.Error()
	}
	return err.Error()
}
