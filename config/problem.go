package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A Problem is one thing wrong, or worth a warning, and where it stands.
type Problem struct {
	File         string
	Line, Column int // from 1; 0 if the problem is the file as a whole
	Message      string
}

func (p Problem) String() string {
	if p.Line == 0 {
		return fmt.Sprintf("%s: %s", p.File, p.Message)
	}
	return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Message)
}

// Problems is the error of [Parse] and [Load]: everything wrong at once, sorted by place.
type Problems []Problem

// Error lists the problems, one per line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
	}
	return strings.Join(lines, "\n")
}

// sorted orders the problems by place and drops repetitions, which arise where an alias is used twice.
func (p Problems) sorted() Problems {
	slices.SortFunc(p, func(a, b Problem) int {
		return cmp.Or(a.place().compare(b.place()), cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(p)
}

func (p Problem) place() position { return position{p.File, p.Line, p.Column} }

// A position is a place in a file, line and column counted from 1.
type position struct {
	file         string
	line, column int
}

// from says where p is to a reader who is at another position.
func (p position) from(here position) string {
	if p.file == here.file {
		return fmt.Sprintf("in line %d", p.line)
	}
	return fmt.Sprintf("at %s:%d:%d", p.file, p.line, p.column)
}

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.file, q.file), cmp.Compare(p.line, q.line), cmp.Compare(p.column, q.column))
}
