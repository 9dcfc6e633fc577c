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

// Parse parses a configuration; name is the file name in problems. The error is a [Problems] with
// all problems; warnings are returned with an error or without. Entries of llm_configs cannot be
// files here.
func Parse(data []byte, name string, c Checks) (*Config, []Problem, error) {
	return parse(data, name, c, nil)
}

// Load parses the file at path and the files it refers to. Relative paths are relative to the
// referring file. See [Parse].
func Load(path string, c Checks) (*Config, []Problem, error) {
	return load(path, c, os.ReadFile)
}

func load(path string, c Checks, open opener) (*Config, []Problem, error) {
	data, err := open(path)
	if err != nil {
		return nil, nil, Problems{{File: path, Message: "cannot read this file: " + withoutPath(err).Error()}}
	}
	return parse(data, path, c, open)
}

// An opener returns the content of a file.
type opener func(path string) ([]byte, error)

func newReader(c Checks, open opener) *reader {
	return &reader{
		checks:  c,
		ifEmpty: "describe at least one model",
		open:    open,
		config:  &Config{HTTP: defaultHTTP(), Admin: defaultAdmin(), Session: defaultSession()},
		names:   make(map[string]position),
		urls:    make(map[string]urlOwner),

		keyNames:  make(map[string]bool),
		keyHashes: make(map[[sha256.Size]byte]string),
	}
}

func parse(data []byte, name string, c Checks, open opener) (*Config, []Problem, error) {
	r := newReader(c, open)
	if root := r.parseDocument(data, name); root != nil {
		r.object(r.file(), rayFile...)(root)
		r.checkFile(root)
	}
	r.warnIgnored()
	if len(r.problems) > 0 {
		return nil, r.warnings.sorted(), r.problems.sorted()
	}
	return r.config, r.warnings.sorted(), nil
}

// modelOrFile reads an entry of llm_configs: a model, or the path of a file with one.
func (r *reader) modelOrFile(n *node) {
	if n.kind != text {
		r.model(n)
		return
	}
	if r.open == nil {
		r.problemf(n.at, "the path of a model is relative to a configuration file, and there is none; write the model here")
		return
	}
	if root := r.includeFile(n); root != nil {
		r.model(root)
	}
}

// includeFile returns the value in the file at path n, or nil after reporting the problem.
func (r *reader) includeFile(n *node) *node {
	data, path, ok := r.readFile(n)
	if !ok {
		return nil
	}
	return r.parseDocument(data, path)
}

// resolvePath returns the path in n, relative to n's own file.
func (n *node) resolvePath() string {
	if filepath.IsAbs(n.text) {
		return n.text
	}
	return filepath.Join(filepath.Dir(n.at.file), n.text)
}

// readFile reads the file at path n.
func (r *reader) readFile(n *node) (data []byte, path string, ok bool) {
	path = n.resolvePath()
	data, err := r.open(path)
	if err != nil {
		r.problemf(n.at, "cannot read %s: %s", display(path), withoutPath(err))
		return nil, "", false
	}
	return data, path, true
}

// parseDocument returns the value in a YAML file, or nil after reporting the problem.
func (r *reader) parseDocument(data []byte, file string) *node {
	start := position{file, 1, 1}
	if !utf8.Valid(data) {
		r.problemf(start, "this file is not UTF-8; save it as UTF-8")
		return nil
	}
	parsed, err := parser.ParseBytes(bytes.TrimPrefix(data, []byte("\ufeff")), 0, parser.AllowDuplicateMapKey())
	t := tree{file: file, problemf: r.problemf, anchors: make(map[string]anchor)}
	if syntax, ok := errors.AsType[yaml.Error](err); ok {
		r.problemf(t.position(syntax.GetToken()), "invalid YAML: %s", syntax.GetMessage())
		return nil
	} else if err != nil {
		r.problemf(start, "invalid YAML: %v", err)
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
		r.problemf(start, "this file is empty; %s", r.ifEmpty)
		return nil
	case 1:
		return t.build(bodies[0]).withName("this file", start)
	}
	r.problemf(t.position(bodies[1].GetToken()), "this file has more than one document; keep one of them")
	return nil
}

// withoutPath removes the path from an error, since problems also name the path.
func withoutPath(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err
	}
	return err
}
