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

// A reader turns nodes into a Config and collects their problems. Most methods return a function
// that reads one value into a destination; a schema is a table of such functions. A value with a
// problem leaves the destination unchanged.
type reader struct {
	checks  Checks
	ifEmpty string // what to do about an empty file
	open    opener // nil: the configuration comes from no file and cannot refer to any

	config   *Config
	problems Problems
	warnings Problems
	ignored  []*node // keys used only by Ray

	names         map[string]position // ids and aliases of models
	keyModelNodes []*node             // the models named by API keys
	urls          map[string]urlOwner

	keyNames  map[string]bool              // of API keys
	keyHashes map[[sha256.Size]byte]string // of API keys, with their names
}

func (r *reader) problemf(at position, format string, args ...any) {
	r.problems = append(r.problems, problem(at, format, args...))
}

func (r *reader) warnf(at position, format string, args ...any) {
	r.warnings = append(r.warnings, problem(at, format, args...))
}

func problem(at position, format string, args ...any) Problem {
	return Problem{File: at.file, Line: at.line, Column: at.column, Message: fmt.Sprintf(format, args...)}
}

// wrongValue reports a value of the wrong type or range. want completes the sentence "the key must
// be".
func (r *reader) wrongValue(n *node, want string) {
	switch n.kind {
	case broken:
	case null:
		r.problemf(n.key, "%s has no value; set one or remove the key", n.name)
	default:
		r.problemf(n.at, "%s must be %s", n.name, want)
	}
}

// fields maps the keys of a mapping to the functions reading their values.
type fields map[string]func(*node)

// object reads a mapping. Keys in rayOnly are ignored with a warning; other unknown keys are
// problems.
func (r *reader) object(known fields, rayOnly ...string) func(*node) {
	return func(n *node) {
		if n.kind != mapping {
			r.wrongValue(n, "a mapping of keys to values")
			return
		}
		for _, child := range n.nodes {
			switch read := known[child.name]; {
			case read != nil:
				read(child)
			case slices.Contains(rayOnly, child.name):
				r.ignoreKey(child)
			default:
				r.unknown(child, append(slices.Sorted(maps.Keys(known)), rayOnly...))
			}
		}
	}
}

// ignoreKey records a key without effect.
func (r *reader) ignoreKey(n *node) { r.ignored = append(r.ignored, n) }

// unknown reports an unknown key, with the most similar known key.
func (r *reader) unknown(n *node, known []string) {
	if meant := nearest(n.name, known); meant != "" {
		r.problemf(n.key, "unknown key %s; did you mean %s?", display(n.name), meant)
		return
	}
	r.problemf(n.key, "unknown key %s; remove it", display(n.name))
}

// list reads each item of a sequence.
func (r *reader) list(item func(*node)) func(*node) {
	return func(n *node) {
		if n.kind != sequence {
			r.wrongValue(n, "a list")
			return
		}
		for i, child := range n.nodes {
			item(child.withName(fmt.Sprintf("%s[%d]", n.name, i), child.at))
		}
	}
}

// label reads the name of a model, a replica or a policy.
func (r *reader) label(dst *string) func(*node) {
	return func(n *node) {
		switch {
		case n.kind == number || n.kind == boolean:
			r.wrongValue(n, "text; put it in quotes")
		case n.kind != text:
			r.wrongValue(n, "text")
		case n.text == "":
			r.wrongValue(n, "a name, not an empty string")
		case strings.TrimSpace(n.text) != n.text || strings.ContainsFunc(n.text, unprintable):
			r.wrongValue(n, "printable text without leading or trailing spaces")
		default:
			*dst = n.text
		}
	}
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// variable reads the name of an environment variable. Messages do not repeat the value, which may
// be the secret itself.
func (r *reader) variable(dst *string) func(*node) {
	return func(n *node) {
		if n.kind != text || !variable.MatchString(n.text) {
			r.wrongValue(n, "the name of an environment variable, not the key itself")
			return
		}
		*dst = n.text
	}
}

// oneOf reads one of the given words.
func (r *reader) oneOf(dst *string, words ...string) func(*node) {
	return func(n *node) {
		if n.kind != text || !slices.Contains(words, n.text) {
			r.wrongValue(n, strings.Join(words, " or "))
			return
		}
		*dst = n.text
	}
}

// flag reads true or false.
func (r *reader) flag(dst *bool) func(*node) {
	return func(n *node) {
		if n.kind != boolean {
			r.wrongValue(n, "true or false")
			return
		}
		*dst = n.truth
	}
}

// fileOrSwitch reads the path of a file, or true for standard output, or false for none.
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
			r.wrongValue(n, "true, false or the path of a file")
		}
	}
}

// wholeNumber reads a whole number within bounds.
func wholeNumber[T int | int64](r *reader, dst *T, least, most T) func(*node) {
	return func(n *node) {
		if n.kind != number || n.number != math.Trunc(n.number) || n.number < float64(least) || n.number > float64(most) {
			r.wrongValue(n, fmt.Sprintf("a whole number from %d to %d", least, most))
			return
		}
		*dst = T(n.number)
	}
}

// capacity reads max_ongoing_requests. null and numbers above MaxOngoing mean MaxOngoing.
func (r *reader) capacity(dst *int) func(*node) {
	return func(n *node) {
		switch {
		case n.kind == null:
			*dst = MaxOngoing
		case n.kind != number || n.number != math.Trunc(n.number) || n.number < 1:
			r.wrongValue(n, "a whole number of at least 1, or null for no limit")
		default:
			*dst = int(min(n.number, MaxOngoing))
		}
	}
}

// rate reads an amount per second.
func (r *reader) rate(dst *float64) func(*node) {
	return func(n *node) {
		if n.kind != number || !(n.number >= 1 && n.number <= 1e9) {
			r.wrongValue(n, "a number from 1 to 1e9")
			return
		}
		*dst = n.number
	}
}

// maxDuration bounds all durations. Up to maxDuration, seconds as a float64 are exact to the
// microsecond.
const maxDuration = 30 * 24 * time.Hour

// seconds reads a number of seconds.
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
		r.duration(dst, minDuration, time.Second, "seconds, 0 for none or")(n)
	}
}

// milliseconds reads a number of milliseconds.
func (r *reader) milliseconds(dst *time.Duration, least time.Duration) func(*node) {
	return r.duration(dst, least, time.Millisecond, "milliseconds")
}

// duration reads a number of units, rounded to the microsecond.
func (r *reader) duration(dst *time.Duration, least, unit time.Duration, units string) func(*node) {
	inUnits := func(d time.Duration) float64 { return float64(d) / float64(unit) }
	return func(n *node) {
		if n.kind != number || !(n.number >= inUnits(least) && n.number <= inUnits(maxDuration)) {
			r.wrongValue(n, fmt.Sprintf("a number of %s from %v to %v", units, inUnits(least), int64(maxDuration/unit)))
			return
		}
		*dst = time.Duration(math.Round(n.number*float64(unit/time.Microsecond))) * time.Microsecond
	}
}

// kwargs reads a mapping for a policy to interpret.
func (r *reader) kwargs(dst *map[string]any) func(*node) {
	return func(n *node) {
		if n.kind != mapping {
			r.wrongValue(n, "a mapping of names to values")
			return
		}
		if len(n.nodes) > 0 {
			*dst = r.value(n).(map[string]any)
		}
	}
}

// value returns a node as plain data. A whole number becomes an int in any notation.
func (r *reader) value(n *node) any {
	switch n.kind {
	case boolean:
		return n.truth
	case text:
		return n.text
	case number:
		if math.IsNaN(n.number) || math.IsInf(n.number, 0) {
			r.problemf(n.at, "this must be a finite number")
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
