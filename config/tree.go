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
	broken kind = iota // reported already
	null
	boolean
	number
	text
	sequence
	mapping
)

// A node is a value of a document, with aliases resolved and merge keys applied. Nodes are shared where the
// document shares them, so they are never changed once built; a copy is given a name of its own.
type node struct {
	kind   kind
	name   string   // the key it stands under, or the list's and an index
	key    position // of that key
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

// A tree builds the nodes of one document.
type tree struct {
	file    string
	fail    func(at position, format string, args ...any)
	anchors map[string]anchor
	size    int // nodes so far, aliases written out
}

// An anchor is a node that aliases can stand for, and how many nodes it is.
type anchor struct {
	node *node
	size int
}

// maxSize bounds a document with its aliases written out, as a few of them can describe one without end.
const maxSize = 1_000_000

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
	t.fail(at, "this YAML syntax is not supported here; write a plain value, list or mapping")
	return &node{at: at}
}

// decimal is a number of YAML's core schema, with underscores between digits allowed.
var decimal = regexp.MustCompile(`^[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?$`)

// plain is an unquoted scalar. The library's own reading is not used: it takes 1e9 and whatever exceeds 64
// bits for text, and 010 for eight.
func plain(at position, written string) *node {
	if !decimal.MatchString(written) {
		return &node{kind: text, at: at, text: written}
	}
	// The only error left is a number out of range, and then the value is the infinity it should be.
	value, _ := strconv.ParseFloat(strings.ReplaceAll(written, "_", ""), 64)
	return &node{kind: number, at: at, number: value}
}

func (t *tree) sequence(at position, values []ast.Node) *node {
	n := &node{kind: sequence, at: at}
	for _, value := range values {
		n.nodes = append(n.nodes, t.build(value))
	}
	return n
}

func (t *tree) mapping(at position, values []*ast.MappingValueNode) *node {
	n := &node{kind: mapping, at: at}
	seen := make(map[string]bool, len(values))
	var merges []*node
	for i, value := range values {
		key := t.position(value.Key.GetToken())
		if i == 0 && at.line == key.line && at.column > key.column {
			n.at = key // the library places a block mapping at its first colon
		}
		if value.Key.IsMergeKey() {
			merges = append(merges, t.merged(key, t.build(value.Value))...)
			continue
		}
		name, ok := value.Key.(*ast.StringNode)
		switch {
		case !ok:
			t.fail(key, "a key must be text; put it in quotes")
		case seen[name.Value]:
			t.fail(key, "%s is given twice; keep one of them", display(name.Value))
		default:
			seen[name.Value] = true
			n.nodes = append(n.nodes, t.build(value.Value).called(name.Value, key))
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

// merged lists the mappings that the value of a merge key stands for; of two, the first wins.
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
			t.fail(key, "<< takes a mapping or a list of mappings")
		}
		return nil
	}
	return mappings
}

// alias returns what an anchor earlier in the document stands for, placed where the alias is.
func (t *tree) alias(at position, name string) *node {
	switch anchored, ok := t.anchors[name]; {
	case !ok:
		t.fail(at, "there is no anchor &%s before this alias; add one or correct the name", name)
	case t.size+anchored.size > maxSize:
		t.fail(at, "with this alias the file stands for more than %d values; use fewer", maxSize)
	default:
		t.size += anchored.size
		here := *anchored.node
		here.at = at
		return &here
	}
	return &node{at: at}
}

// called returns the value under a name.
func (n *node) called(name string, key position) *node {
	named := *n
	named.name, named.key = name, key
	return &named
}

func (t *tree) position(tk *token.Token) position {
	if tk == nil || tk.Position == nil {
		return position{file: t.file, line: 1, column: 1}
	}
	return position{file: t.file, line: tk.Position.Line, column: tk.Position.Column}
}
