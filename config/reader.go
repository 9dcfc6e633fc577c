package config

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
)

// A reader turns nodes into a Config and collects what is wrong with them. Its methods return functions that
// read one value into a destination, so that a schema is a table of them; a value with a problem leaves its
// destination alone.
type reader struct {
	checks Checks
	open   opener // nil: no entry of llm_configs can be a file

	config   *Config
	problems Problems
	warnings Problems
	idle     []*node // keys that only Ray gives effect to

	names map[string]position // ids and aliases of models
	named []*node             // models that API keys name
	urls  map[string]claim

	keyNames  map[string]bool              // of API keys
	keyHashes map[[sha256.Size]byte]string // of API keys, with their names
}

func (r *reader) fail(at position, format string, args ...any) {
	r.problems = append(r.problems, problem(at, format, args...))
}

func (r *reader) warn(at position, format string, args ...any) {
	r.warnings = append(r.warnings, problem(at, format, args...))
}

func problem(at position, format string, args ...any) Problem {
	return Problem{File: at.file, Line: at.line, Column: at.column, Message: fmt.Sprintf(format, args...)}
}

// mismatch reports a value that is not what its key takes.
func (r *reader) mismatch(n *node, takes string) {
	switch n.kind {
	case broken:
	case null:
		r.fail(n.key, "%s has no value; give it one or remove it", n.name)
	default:
		r.fail(n.at, "%s must be %s", n.name, takes)
	}
}

// fields says how the value of each key of a mapping is read.
type fields map[string]func(*node)

// object reads a mapping. Keys in rayOnly are accepted and take no effect.
func (r *reader) object(known fields, rayOnly ...string) func(*node) {
	return func(n *node) {
		if n.kind != mapping {
			r.mismatch(n, "a mapping of keys to values")
			return
		}
		for _, child := range n.nodes {
			switch read := known[child.name]; {
			case read != nil:
				read(child)
			case slices.Contains(rayOnly, child.name):
				r.ignore(child)
			default:
				r.unknown(child, append(slices.Sorted(maps.Keys(known)), rayOnly...))
			}
		}
	}
}

// ignore accepts a value that has no effect here.
func (r *reader) ignore(n *node) { r.idle = append(r.idle, n) }

func (r *reader) unknown(n *node, known []string) {
	if meant := nearest(n.name, known); meant != "" {
		r.fail(n.key, "%s is not a key here; did you mean %s?", display(n.name), meant)
		return
	}
	r.fail(n.key, "%s is not a key here; remove it", display(n.name))
}

// list reads each item of a sequence.
func (r *reader) list(item func(*node)) func(*node) {
	return func(n *node) {
		if n.kind != sequence {
			r.mismatch(n, "a list")
			return
		}
		for i, child := range n.nodes {
			item(child.called(fmt.Sprintf("%s[%d]", n.name, i), child.at))
		}
	}
}

// label reads a name: of a model, a replica, a policy.
func (r *reader) label(dst *string) func(*node) {
	return func(n *node) {
		switch {
		case n.kind == number || n.kind == boolean:
			r.mismatch(n, "text; put it in quotes")
		case n.kind != text:
			r.mismatch(n, "text")
		case n.text == "":
			r.mismatch(n, "a name, not an empty text")
		case strings.TrimSpace(n.text) != n.text || strings.ContainsFunc(n.text, unprintable):
			r.mismatch(n, "printable text without spaces around it")
		default:
			*dst = n.text
		}
	}
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// variable reads the name of an environment variable. Its message does not repeat the value, which may be
// the secret itself.
func (r *reader) variable(dst *string) func(*node) {
	return func(n *node) {
		if n.kind != text || !variable.MatchString(n.text) {
			r.mismatch(n, "the name of an environment variable, not the key itself")
			return
		}
		*dst = n.text
	}
}

// oneOf reads one of a few words.
func (r *reader) oneOf(dst *string, words ...string) func(*node) {
	return func(n *node) {
		if n.kind != text || !slices.Contains(words, n.text) {
			r.mismatch(n, strings.Join(words, " or "))
			return
		}
		*dst = n.text
	}
}

// flag reads true or false.
func (r *reader) flag(dst *bool) func(*node) {
	return func(n *node) {
		if n.kind != boolean {
			r.mismatch(n, "true or false")
			return
		}
		*dst = n.truth
	}
}

// fileOrSwitch reads the path of a file; true stands for standard output, false for none.
func (r *reader) fileOrSwitch(dst *string) func(*node) {
	return func(n *node) {
		switch {
		case n.kind == boolean && n.truth:
			*dst = ToStdout
		case n.kind == boolean:
			*dst = ""
		case n.kind == text && strings.TrimSpace(n.text) != "" && !strings.ContainsFunc(n.text, unprintable):
			*dst = n.text
		default:
			r.mismatch(n, "true, false or the path of a file")
		}
	}
}

// whole reads a whole number within bounds.
func whole[T int | int64](r *reader, dst *T, least, most T) func(*node) {
	return func(n *node) {
		if n.kind != number || n.number != math.Trunc(n.number) || n.number < float64(least) || n.number > float64(most) {
			r.mismatch(n, fmt.Sprintf("a whole number from %d to %d", least, most))
			return
		}
		*dst = T(n.number)
	}
}

// capacity reads max_ongoing_requests: null and whatever exceeds MaxOngoing mean MaxOngoing.
func (r *reader) capacity(dst *int) func(*node) {
	return func(n *node) {
		switch {
		case n.kind == null:
			*dst = MaxOngoing
		case n.kind != number || n.number != math.Trunc(n.number) || n.number < 1:
			r.mismatch(n, "a whole number, at least 1, or null for no limit")
		default:
			*dst = int(min(n.number, MaxOngoing))
		}
	}
}

// rate reads an amount per second.
func (r *reader) rate(dst *float64) func(*node) {
	return func(n *node) {
		if n.kind != number || !(n.number >= 1 && n.number <= 1e9) {
			r.mismatch(n, "a number from 1 to 1e9")
			return
		}
		*dst = n.number
	}
}

// longest bounds every duration. It is far beyond any sense, and seconds as a float64 are still exact to the
// microsecond.
const longest = 30 * 24 * time.Hour

func (r *reader) seconds(dst *time.Duration, least time.Duration) func(*node) {
	return r.duration(dst, least, time.Second, "seconds")
}

// timeout reads a number of seconds, or 0 for none.
func (r *reader) timeout(dst *time.Duration) func(*node) {
	return func(n *node) {
		if n.kind == number && n.number == 0 {
			*dst = 0
			return
		}
		r.duration(dst, moment, time.Second, "seconds, 0 for none or")(n)
	}
}

func (r *reader) milliseconds(dst *time.Duration, least time.Duration) func(*node) {
	return r.duration(dst, least, time.Millisecond, "milliseconds")
}

// duration reads a number of units and rounds it to the microsecond.
func (r *reader) duration(dst *time.Duration, least, unit time.Duration, units string) func(*node) {
	inUnits := func(d time.Duration) float64 { return float64(d) / float64(unit) }
	return func(n *node) {
		if n.kind != number || !(n.number >= inUnits(least) && n.number <= inUnits(longest)) {
			r.mismatch(n, fmt.Sprintf("a number of %s from %v to %v", units, inUnits(least), int64(longest/unit)))
			return
		}
		*dst = time.Duration(math.Round(n.number*float64(unit/time.Microsecond))) * time.Microsecond
	}
}

// kwargs reads a mapping that a policy will interpret.
func (r *reader) kwargs(dst *map[string]any) func(*node) {
	return func(n *node) {
		if n.kind != mapping {
			r.mismatch(n, "a mapping of names to values")
			return
		}
		if len(n.nodes) > 0 {
			*dst = r.value(n).(map[string]any)
		}
	}
}

// value returns a node as plain data. A whole number becomes an int however it is written.
func (r *reader) value(n *node) any {
	switch n.kind {
	case boolean:
		return n.truth
	case text:
		return n.text
	case number:
		if math.IsNaN(n.number) || math.IsInf(n.number, 0) {
			r.fail(n.at, "this must be a finite number")
		}
		if n.number == math.Trunc(n.number) && math.Abs(n.number) <= 1<<53 {
			return int(n.number)
		}
		return n.number
	case sequence:
		values := make([]any, len(n.nodes))
		for i, child := range n.nodes {
			values[i] = r.value(child)
		}
		return values
	case mapping:
		values := make(map[string]any, len(n.nodes))
		for _, child := range n.nodes {
			values[child.name] = r.value(child)
		}
		return values
	}
	return nil
}
