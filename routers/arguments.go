package routers

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// arguments checks the arguments of a class and keeps what is wrong first.
type arguments struct {
	class string
	given map[string]any
	known []string
	err   error
}

// check is the first problem; arguments that were not asked for are one.
func (a *arguments) check() error {
	var unknown []string
	for name := range a.given {
		if !slices.Contains(a.known, name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		slices.Sort(a.known)
		return fmt.Errorf("%s has no argument %s; the known ones are %s", a.class, strings.Join(unknown, ", "), strings.Join(a.known, ", "))
	}
	return a.err
}

// ignore accepts arguments that have no effect here.
func (a *arguments) ignore(names ...string) { a.known = append(a.known, names...) }

// number reads an argument, if given, into to.
func (a *arguments) number(name string, to *float64, low, high float64) {
	a.known = append(a.known, name)
	value, given := a.given[name]
	if !given {
		return
	}
	f, ok := float(value)
	if !ok || !(f >= low && f <= high) { // which refuses NaN, too
		a.err = fmt.Errorf("%s: %s must be a number from %v to %v, not %v", a.class, name, low, high, value)
		return
	}
	*to = f
}

// integer reads an argument, if given, into to.
func (a *arguments) integer(name string, to *int, low, high int) {
	f := float64(*to)
	a.number(name, &f, float64(low), float64(high))
	if f != math.Trunc(f) {
		a.err = fmt.Errorf("%s: %s must be a whole number, not %v", a.class, name, f)
		return
	}
	*to = int(f)
}

// float is the value of a number as configuration gives it.
func float(value any) (float64, bool) {
	switch v := value.(type) {
	case int:
		return float64(v), true
	case float64:
		return v, true
	default:
		return 0, false
	}
}
