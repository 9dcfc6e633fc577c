package main

import (
	"context"
	"math"
	"os"
	"runtime"
	"testing"
)

func TestMoreProcessorsComeAtOnceAndFewerAfterACalm(t *testing.T) {
	var d demand
	looks := func(n int, used ...float64) int {
		next := 0
		for _, u := range used {
			next = d.next(n, u, false)
		}
		return next
	}
	calm := func(used float64) []float64 {
		c := make([]float64, processorsCalm)
		for i := range c {
			c[i] = used
		}
		return c
	}
	for _, c := range []struct {
		what string
		n    int
		used []float64
		want int
	}{
		{"a busy one", 1, []float64{0.7}, math.MaxInt},
		{"busy ones", 4, []float64{3.9}, math.MaxInt},
		{"one that is used enough", 1, calm(0.5), 1},
		{"a calm that is too short", 4, calm(0)[1:], 4},
		{"nothing to do", 64, calm(0), 1},
		{"what one can carry", 2, calm(0.4), 1},
		{"what one cannot carry", 2, calm(0.5), 2},
		{"what two can carry", 8, calm(0.7), 2},
		{"a calm with a peak", 8, append([]float64{2}, calm(0)[1:]...), 5},
		{"a calm that was broken off", 4, append(append(calm(0)[2:], 3), 0, 0), 4},
	} {
		d = demand{}
		if got := looks(c.n, c.used...); got != c.want {
			t.Errorf("%s: %d of %d processors, want %d", c.what, got, c.n, c.want)
		}
	}
	if d = (demand{}); d.next(2, 0.1, true) != math.MaxInt {
		t.Error("a look that came late brought no more processors")
	}
}

func TestGoChoosesTheProcessorsAgainAtTheEnd(t *testing.T) {
	if os.Getenv("GOMAXPROCS") != "" {
		t.Skip("GOMAXPROCS is set")
	}
	n := runtime.GOMAXPROCS(0)
	ended, end := context.WithCancel(t.Context())
	end()
	paceProcessors(ended)
	if got := runtime.GOMAXPROCS(0); got != n {
		t.Errorf("%d processors after the end, want %d as before", got, n)
	}
	t.Setenv("GOMAXPROCS", "7")
	paceProcessors(t.Context()) // returns at once
	if got := runtime.GOMAXPROCS(0); got != n {
		t.Errorf("%d processors where the environment sets them, want %d untouched", got, n)
	}
}
