package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A Problem is an error or a warning at a position of a file.
type Problem struct {
	File         string
	Line, Column int // from 1; 0 if the problem concerns the whole file
	Message      string
}

func (p Problem) String() string {
	if p.Line == 0 {
		return fmt.Sprintf("%s: %s", p.File, p.Message)
	}
	return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Message)
}

// Problems is the error of [Parse] and [Load]: all problems, sorted by position.
type Problems []Problem

// Error lists the problems, one per line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
	}
	return strings.Join(lines, "\n")
}

// sorted sorts the problems by position and removes duplicates, which arise if an alias is used
// twice.
func (p Problems) sorted() Problems {
	slices.SortFunc(p, func(a, b Problem) int {
		return cmp.Or(a.position().compare(b.position()), cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(p)
}

func (p Problem) position() position { return position{p.File, p.Line, p.Column} }

// A position is a position in a file, with line and column counted from 1.
type position struct {
	file         string
	line, column int
}

// from describes p relative to another position: without the file if both are in the same.
func (p position) from(here position) string {
	if p.file == here.file {
		return fmt.Sprintf("in line %d", p.line)
	}
	return fmt.Sprintf("at %s:%d:%d", p.file, p.line, p.column)
}

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.file, q.file), cmp.Compare(p.line, q.line), cmp.Compare(p.column, q.column))
}
