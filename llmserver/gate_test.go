package llmserver

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// admits is the naive model of what a gate decides, in the words of the law.
func admits(c counts, bound int) error {
	switch {
	case c.phase == draining:
		return ErrDraining
	case c.phase == retired:
		return ErrGone
	case c.reserved+c.running >= c.limit, bound > 0 && c.reserved+c.running >= bound:
		return ErrFull
	default:
		return nil
	}
}

func TestGateMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var g gate
		var model counts
		unit := func(t *rapid.T) (uint64, *int) {
			if rapid.Bool().Draw(t, "running") {
				return oneRunning, &model.running
			}
			return oneReserved, &model.reserved
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if got := g.counts(); got != model {
					t.Fatalf("the gate reads %+v; want %+v", got, model)
				}
			},
			"setLimit": func(t *rapid.T) {
				limit := rapid.OneOf(rapid.IntRange(-1, 6), rapid.IntRange(MaxLimit-1, MaxLimit+1)).Draw(t, "limit")
				g.setLimit(limit)
				model.limit = min(max(limit, 0), MaxLimit)
			},
			"move": func(t *rapid.T) {
				model.phase = rapid.SampledFrom([]phase{serving, serving, serving, draining, retired}).Draw(t, "phase")
				g.setPhase(model.phase)
			},
			"reserve": func(t *rapid.T) {
				bound := rapid.IntRange(0, 4).Draw(t, "bound")
				want := admits(model, bound)
				if err := g.reserveUnit(bound); err != want {
					t.Fatalf("reserve(%d) = %v; want %v at %+v", bound, err, want, model)
				}
				if want == nil {
					model.reserved++
				}
			},
			"start": func(t *rapid.T) {
				if model.reserved == 0 {
					t.Skip("nothing is reserved")
				}
				g.startUnit()
				model.reserved, model.running = model.reserved-1, model.running+1
			},
			"free": func(t *rapid.T) {
				u, count := unit(t)
				if *count == 0 {
					t.Skip("nothing to free")
				}
				g.releaseUnit(u)
				*count--
			},
			"pass": func(t *rapid.T) {
				u, count := unit(t)
				if *count == 0 {
					t.Skip("nothing to pass")
				}
				without := model // the unit that is passed does not count against itself
				without.reserved--
				want := admits(without, 0)
				if err := g.transferUnit(u); err != want {
					t.Fatalf("pass = %v; want %v at %+v", err, want, model)
				}
				if want == nil {
					*count--
					model.reserved++
				}
			},
		})
	})
}

func TestGateLoweredLimitAdmitsNothingUntilBelowIt(t *testing.T) {
	var g gate
	g.setLimit(4)
	for range 4 {
		if err := g.reserveUnit(0); err != nil {
			t.Fatal(err)
		}
	}
	g.startUnit()
	g.setLimit(2)
	for ongoing := 4; ongoing >= 2; ongoing-- {
		if err := g.reserveUnit(0); !errors.Is(err, ErrFull) {
			t.Fatalf("reserve with %d ongoing and a limit of 2 = %v", ongoing, err)
		}
		g.releaseUnit(oneReserved)
	}
	if err := g.reserveUnit(0); err != nil {
		t.Fatalf("reserve with 1 ongoing and a limit of 2 = %v", err)
	}
}

func TestGatePanicsOnDoubleRelease(t *testing.T) {
	for name, give := range map[string]func(*gate){
		"free reserved": func(g *gate) { g.releaseUnit(oneReserved) },
		"free running":  func(g *gate) { g.releaseUnit(oneRunning) },
		"start":         (*gate).startUnit,
		"pass":          func(g *gate) { g.transferUnit(oneRunning) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("it was taken from an empty gate")
				}
			}()
			var g gate
			g.setLimit(1)
			give(&g)
		})
	}
}

func TestGateIsExactUnderContention(t *testing.T) {
	const limit = 3
	var g gate
	g.setLimit(limit)
	var inside, most atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20_000 {
				if g.reserveUnit(0) != nil {
					continue
				}
				if n := inside.Add(1); n > limit {
					most.Store(n)
				}
				g.startUnit()
				inside.Add(-1)
				g.releaseUnit(oneRunning)
			}
		})
	}
	all.Wait()
	if c := g.counts(); c.ongoing() != 0 || most.Load() != 0 {
		t.Errorf("at the end it reads %+v; %d were inside, with a limit of %d", c, most.Load(), limit)
	}
}
