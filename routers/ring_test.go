package routers

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

func TestRingHashesAsRayDoes(t *testing.T) {
	for key, want := range map[string]uint64{
		"":                           0xf909160d05c35c01,
		"user_123":                   0xb7673f0c0d8bb10a,
		"r1:0":                       0xb8813ca326e4f8f5,
		"r1:99":                      0x30656457d988b4fa,
		"session-1":                  0x9fdd8c262c54fec2,
		"abcdefghijklmnopqrstuvwxyz": 0xeccd62eaf2b4e510,
	} {
		if got := ringHash([]byte(key)); got != want {
			t.Errorf("ringHash(%q) = %x; want %x", key, got, want)
		}
	}
}

func TestRingPlacesAsRayDoes(t *testing.T) {
	r := newRing([]string{"aaa", "bbb", "ccc", "ddd"}, 100)
	for key, want := range map[string][]int{
		"user_123":  {3, 2, 0},
		"session-1": {2, 0, 3},
		"s0":        {1, 0, 3},
		"s1":        {0, 1, 3},
		"s2":        {0, 2, 3},
	} {
		if got := slices.Collect(r.clockwise(ringHash([]byte(key))))[:3]; !slices.Equal(got, want) {
			t.Errorf("%q is placed on %v; want %v", key, got, want)
		}
	}
	var spread [4]int
	for i := range 10_000 {
		spread[owner(r, "s"+strconv.Itoa(i))]++
	}
	if want := [4]int{2740, 2777, 2054, 2429}; spread != want {
		t.Errorf("ten thousand sessions are spread %v; want %v", spread, want)
	}
}

// owner is whom a key belongs to.
func owner(r *ring, key string) int {
	for i := range r.clockwise(ringHash([]byte(key))) {
		return i
	}
	return -1
}

// Of all points of all owners, each owner's nearest clockwise decides.
func TestRingAgreesWithANaiveModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := slices.Sorted(slices.Values(rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9-]{1,8}`), 0, 12, rapid.ID).Draw(t, "ids")))
		virtual := rapid.IntRange(1, 20).Draw(t, "virtual")
		r := newRing(ids, virtual)
		hash := rapid.Uint64().Draw(t, "hash")
		if len(r.points) > 0 && rapid.Bool().Draw(t, "on a point") {
			hash = rapid.SampledFrom(r.points).Draw(t, "point").hash
		}
		distance := make([]uint64, len(ids))
		for i, id := range ids {
			distance[i] = math.MaxUint64
			for v := range virtual {
				// One less, so that a point at the hash itself is a whole turn away.
				distance[i] = min(distance[i], ringHash(fmt.Appendf(nil, "%s:%d", id, v))-hash-1)
			}
		}
		want := make([]int, len(ids))
		for i := range want {
			want[i] = i
		}
		slices.SortFunc(want, func(a, b int) int {
			if distance[a] < distance[b] {
				return -1
			}
			return 1
		})
		if got := slices.Collect(r.clockwise(hash)); !slices.Equal(got, want) {
			t.Fatalf("the walk from %x is %v; want %v", hash, got, want)
		}
	})
}

// Whoever moves when a replica is added moves to the one that was added.
func TestRingThatGrowsMovesFewSessionsAndOnlyToTheNewReplica(t *testing.T) {
	const sets, sessions = 100, 2000
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{2, 4, 8, 16} {
		mean := 0.0
		for range sets {
			ids := make([]string, n+1)
			for i := range ids {
				ids[i] = fmt.Sprintf("%08x", random.Uint32())
			}
			added := ids[n]
			before := newRing(slices.Sorted(slices.Values(ids[:n])), 100)
			after := newRing(slices.Sorted(slices.Values(ids)), 100)
			moved := 0
			for s := range sessions {
				key := strconv.Itoa(s)
				was, is := before.ids[owner(before, key)], after.ids[owner(after, key)]
				if was == is {
					continue
				}
				if moved++; is != added {
					t.Fatalf("session %s moved from %s to %s when %s was added", key, was, is, added)
				}
			}
			share := float64(moved) / sessions
			if most := 1.3 / float64(n+1); share > most*1.15 { // the sessions are a sample
				t.Errorf("%.3f of the sessions moved from %d replicas to %d; want at most %.3f", share, n, n+1, most)
			}
			mean += share / sets
		}
		if most := 1.03 / float64(n+1); mean > most {
			t.Errorf("on average %.4f of the sessions move from %d replicas to %d; want at most %.4f", mean, n, n+1, most)
		}
	}
}

func BenchmarkNewRing(b *testing.B) {
	for _, n := range []int{8, 4000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			ids := make([]string, n)
			for i := range ids {
				ids[i] = strconv.Itoa(i)
			}
			for b.Loop() {
				newRing(ids, 100)
			}
		})
	}
}
