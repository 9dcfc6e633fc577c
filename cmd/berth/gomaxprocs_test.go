package main

import (
	"context"
	"math"
	"os"
	"runtime"
	"testing"
)

func TestServeTuneGOMAXPROCSRaisesAtOnceAndLowersAfterCalm(t *testing.T) {
	var d demand
	samples := func(n int, used ...float64) int {
		next := 0
		for _, u := range used {
			next = d.addSample(n, u, false)
		}
		return next
	}
	calm := func(used float64) []float64 {
		c := make([]float64, procsCalm)
		for i := range c {
			c[i] = used
		}
		return c
	}
	for _, c := range []struct {
		name string
		n    int
		used []float64
		want int
	}{
		{"one busy P", 1, []float64{0.7}, math.MaxInt},
		{"four busy Ps", 4, []float64{3.9}, math.MaxInt},
		{"one P, used enough", 1, calm(0.5), 1},
		{"too few samples", 4, calm(0)[1:], 4},
		{"no load", 64, calm(0), 1},
		{"load for one P", 2, calm(0.4), 1},
		{"load too high for one P", 2, calm(0.5), 2},
		{"load for two Ps", 8, calm(0.7), 2},
		{"a peak among calm samples", 8, append([]float64{2}, calm(0)[1:]...), 5},
		{"a burst that restarts the count", 4, append(append(calm(0)[2:], 3), 0, 0), 4},
	} {
		d = demand{}
		if got := samples(c.n, c.used...); got != c.want {
			t.Errorf("%s: GOMAXPROCS %d becomes %d, want %d", c.name, c.n, got, c.want)
		}
	}
	if d = (demand{}); d.addSample(2, 0.1, true) != math.MaxInt {
		t.Error("a late sample did not raise GOMAXPROCS")
	}
}

func TestServeTuneGOMAXPROCSRestoresTheDefault(t *testing.T) {
	if os.Getenv("GOMAXPROCS") != "" {
		t.Skip("GOMAXPROCS is set")
	}
	n := runtime.GOMAXPROCS(0)
	ended, end := context.WithCancel(t.Context())
	end()
	tuneGOMAXPROCS(ended)
	if got := runtime.GOMAXPROCS(0); got != n {
		t.Errorf("GOMAXPROCS is %d after the end, want %d as before", got, n)
	}
	t.Setenv("GOMAXPROCS", "7")
	tuneGOMAXPROCS(t.Context()) // returns at once
	if got := runtime.GOMAXPROCS(0); got != n {
		t.Errorf("GOMAXPROCS is %d where the environment sets it, want %d untouched", got, n)
	}
}
