package config

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

type kind uint8

const (
	broken kind = iota // the problem is reported
	null
	boolean
	number
	text
	sequence
	mapping
)

// A node is a value of a document, with aliases resolved and merge keys applied. Nodes are shared
// where the document uses an alias, so they are immutable once built; withName returns a copy.
type node struct {
	kind   kind
	name   string   // the key, or the list's key with an index
	key    position // of the key in name
	at     position
	truth  bool    // of a boolean
	number float64 // of a number
	text   string  // of a text
	nodes  []*node // of a sequence or a mapping
}

// get returns the value of a key, or nil.
func (n *node) get(key string) *node {
	if n == nil || n.kind != mapping {
		return nil
	}
	for _, child := range n.nodes {
		if child.name == key {
			return child
		}
	}
	return nil
}

// A tree builds the nodes of a document.
type tree struct {
	file     string
	problemf func(at position, format string, args ...any)
	anchors  map[string]anchor
	size     int // nodes so far, with aliases expanded
}

// An anchor is a node referenced by aliases, and the size of the subtree in nodes.
type anchor struct {
	node *node
	size int
}

// maxSize bounds a document with its aliases expanded, since nested aliases grow exponentially.
const maxSize = 1_000_000

// build returns the node of a syntax tree.
func (t *tree) build(n ast.Node) *node {
	t.size++
	at := t.position(n.GetToken())
	switch n := n.(type) {
	case *ast.NullNode:
		return &node{kind: null, at: at}
	case *ast.BoolNode:
		return &node{kind: boolean, at: at, truth: n.Value}
	case *ast.NanNode:
		return &node{kind: number, at: at, number: math.NaN()}
	case *ast.InfinityNode:
		return &node{kind: number, at: at, number: n.Value}
	case *ast.IntegerNode:
		return plain(at, n.Token.Value)
	case *ast.FloatNode:
		return plain(at, n.Token.Value)
	case *ast.StringNode:
		if n.Token.Type == token.SingleQuoteType || n.Token.Type == token.DoubleQuoteType {
			return &node{kind: text, at: at, text: n.Value}
		}
		return plain(at, n.Value)
	case *ast.LiteralNode:
		return &node{kind: text, at: at, text: n.Value.Value}
	case *ast.SequenceNode:
		return t.sequence(at, n.Values)
	case *ast.MappingNode:
		return t.mapping(at, n.Values)
	case *ast.MappingValueNode:
		return t.mapping(at, []*ast.MappingValueNode{n})
	case *ast.AnchorNode:
		before := t.size
		built := t.build(n.Value)
		t.anchors[n.Name.GetToken().Value] = anchor{built, t.size - before}
		return built
	case *ast.AliasNode:
		return t.alias(at, n.Value.GetToken().Value)
	}
	t.problemf(at, "this YAML syntax is not supported; use a plain value, list or mapping")
	return &node{at: at}
}

// decimal matches the decimal numbers of YAML's core schema, and allows underscores between digits.
var decimal = regexp.MustCompile(`^[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?$`)

// plain returns the node of an unquoted scalar. The library's own interpretation is not used: 1e9
// and numbers beyond 64 bits would be text, and 010 would be eight.
func plain(at position, written string) *node {
	if !decimal.MatchString(written) {
		return &node{kind: text, at: at, text: written}
	}
	// The only possible error is a number out of range, for which the value is infinity, as wanted.
	value, _ := strconv.ParseFloat(strings.ReplaceAll(written, "_", ""), 64)
	return &node{kind: number, at: at, number: value}
}

// sequence returns the node of a list.
func (t *tree) sequence(at position, values []ast.Node) *node {
	n := &node{kind: sequence, at: at}
	for _, value := range values {
		n.nodes = append(n.nodes, t.build(value))
	}
	return n
}

// mapping returns the node of a mapping.
func (t *tree) mapping(at position, values []*ast.MappingValueNode) *node {
	n := &node{kind: mapping, at: at}
	seen := make(map[string]bool, len(values))
	var merges []*node
	for i, value := range values {
		key := t.position(value.Key.GetToken())
		if i == 0 && at.line == key.line && at.column > key.column {
			n.at = key // the library's position of a block mapping is the first colon
		}
		if value.Key.IsMergeKey() {
			merges = append(merges, t.merged(key, t.build(value.Value))...)
			continue
		}
		name, ok := value.Key.(*ast.StringNode)
		switch {
		case !ok:
			t.problemf(key, "a key must be text; put it in quotes")
		case seen[name.Value]:
			t.problemf(key, "duplicate key %s; keep one of them", display(name.Value))
		default:
			seen[name.Value] = true
			n.nodes = append(n.nodes, t.build(value.Value).withName(name.Value, key))
		}
	}
	for _, merged := range merges {
		for _, child := range merged.nodes {
			if !seen[child.name] {
				seen[child.name] = true
				n.nodes = append(n.nodes, child)
			}
		}
	}
	return n
}

// merged returns the mappings in the value of a merge key, in order of precedence.
func (t *tree) merged(key position, value *node) []*node {
	mappings := []*node{value}
	if value.kind == sequence {
		mappings = value.nodes
	}
	for _, m := range mappings {
		if m.kind == mapping {
			continue
		}
		if m.kind != broken {
			t.problemf(key, "<< must be a mapping or a list of mappings")
		}
		return nil
	}
	return mappings
}

// alias returns the node of an earlier anchor, at the position of the alias.
func (t *tree) alias(at position, name string) *node {
	switch anchored, ok := t.anchors[name]; {
	case !ok:
		t.problemf(at, "no anchor &%s before this alias; define it or correct the name", name)
	case t.size+anchored.size > maxSize:
		t.problemf(at, "aliases expand this file to more than %d values; use fewer", maxSize)
	default:
		t.size += anchored.size
		here := *anchored.node
		here.at = at
		return &here
	}
	return &node{at: at}
}

// withName returns a copy of the node under a name.
func (n *node) withName(name string, key position) *node {
	named := *n
	named.name, named.key = name, key
	return &named
}

// position returns the position of a token.
func (t *tree) position(tk *token.Token) position {
	if tk == nil || tk.Position == nil {
		return position{file: t.file, line: 1, column: 1}
	}
	return position{file: t.file, line: tk.Position.Line, column: tk.Position.Column}
}
