package routers

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// arguments reads the keyword arguments of a class and keeps an error.
type arguments struct {
	class  string
	values map[string]any
	known  []string // names asked for
	err    error
}

// validate returns the first problem found: an invalid value, or an argument not asked for.
func (a *arguments) validate() error {
	unknown := slices.DeleteFunc(slices.Sorted(maps.Keys(a.values)), func(name string) bool { return slices.Contains(a.known, name) })
	switch {
	case len(unknown) == 0:
		return a.err
	case len(a.known) == 0:
		return fmt.Errorf("%s takes no arguments; remove %s", a.class, strings.Join(unknown, ", "))
	}
	slices.Sort(a.known)
	return fmt.Errorf("%s has no argument %s; the known ones are %s", a.class, strings.Join(unknown, ", "), strings.Join(a.known, ", "))
}

// ignore accepts arguments without effect here.
func (a *arguments) ignore(names ...string) { a.known = append(a.known, names...) }

// number sets *to to an argument, if given.
func (a *arguments) number(name string, to *float64, low, high float64) {
	a.known = append(a.known, name)
	value, given := a.values[name]
	if !given {
		return
	}
	f, ok := value.(float64)
	if i, whole := value.(int); whole {
		f, ok = float64(i), true
	}
	if !ok || !(f >= low && f <= high) { // rejects NaN, too
		a.err = fmt.Errorf("%s: %s must be a number from %v to %v, not %v", a.class, name, low, high, value)
		return
	}
	*to = f
}

// integer sets *to to an argument, if given.
func (a *arguments) integer(name string, to *int, low, high int) {
	f := float64(*to)
	a.number(name, &f, float64(low), float64(high))
	if f != math.Trunc(f) {
		a.err = fmt.Errorf("%s: %s must be a whole number, not %v", a.class, name, f)
		return
	}
	*to = int(f)
}
