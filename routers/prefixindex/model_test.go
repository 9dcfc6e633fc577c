package prefixindex

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// modelHolder is a naive model of a holder: its blocks, the most recently used first.
type modelHolder []modelBlock

type modelBlock struct {
	hash      uint64
	since     int
	inFlight  int
	confirmed bool
}

func (m modelHolder) find(hash uint64) int {
	return slices.IndexFunc(m, func(b modelBlock) bool { return b.hash == hash })
}

// modelPending is an in-flight request of the index and of the model.
type modelPending struct {
	Pending
	hashes []uint64
	turn   int
}

func TestPrefixIndexAgreesWithANaiveModel(t *testing.T) {
	const holders = 3
	rapid.Check(t, func(t *rapid.T) {
		stretch := rapid.SampledFrom([]int{1, nodeSize/2 - 1}).Draw(t, "stretch") // for chains of several nodes
		limit := rapid.IntRange(1, 12*stretch).Draw(t, "blocks per holder")
		x := newIndex(MinBytes, limit)
		var model [holders]modelHolder
		var added [holders]Holder
		for i := range added {
			added[i] = x.Add()
		}
		var inFlight []modelPending
		turn := 0
		draw := func() (int, chain) {
			fork := rapid.SampledFrom([]int{0, 2, 4, 6}).Draw(t, "fork") * stretch
			blocks := slices.Concat(slices.Repeat([]int{0}, fork), slices.Repeat([]int{1}, 6*stretch-fork))
			return rapid.IntRange(0, holders-1).Draw(t, "holder"), chainOf(blocks...)[:rapid.IntRange(0, 6*stretch).Draw(t, "length")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { x.check(t) },
			"insert": func(*rapid.T) {
				i, c := draw()
				turn++
				want, hashes := model[i].insert(c[:min(limit, len(c))], limit, turn)
				got, p := x.Insert(added[i], c)
				if got != want {
					t.Fatalf("%d blocks were known; want %d", got, want)
				}
				inFlight = append(inFlight, modelPending{p, hashes, turn})
			},
			"settle": func(t *rapid.T) {
				if len(inFlight) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(inFlight)-1).Draw(t, "request")
				p, succeeded := inFlight[i], rapid.Bool().Draw(t, "succeeded")
				inFlight = slices.Delete(inFlight, i, i+1)
				x.Settle(p.Pending, succeeded)
				model[p.holder.number].settle(p, succeeded)
			},
			"forget": func(*rapid.T) {
				i := rapid.IntRange(0, holders-1).Draw(t, "holder")
				x.Forget(added[i])
				model[i] = nil
			},
			"match": func(*rapid.T) {
				_, c := draw()
				longest, most := x.Match(c), 0
				for i := range model {
					want := 0
					for want < len(c) && model[i].find(c[want]) >= 0 {
						want++
					}
					most = max(most, want)
					if got := x.MatchedBlocks(uint32(i)); got != want {
						t.Fatalf("holder %d matches %d blocks; want %d", i, got, want)
					}
				}
				if longest != most {
					t.Fatalf("the longest match is %d; want %d", longest, most)
				}
			},
		})
	})
}

func (m *modelHolder) insert(c chain, limit, turn int) (known int, dependsOn []uint64) {
	for known < len(c) && m.find(c[known]) >= 0 {
		known++
	}
	next := make(modelHolder, 0, len(c))
	for i, hash := range c {
		b := modelBlock{hash: hash, since: turn}
		if i < known {
			b = (*m)[m.find(hash)]
		}
		if !b.confirmed {
			b.inFlight++
			dependsOn = append(dependsOn, hash)
		}
		next = append(next, b)
	}
	for _, b := range *m {
		if !slices.Contains(c, b.hash) && len(next) < limit {
			next = append(next, b)
		}
	}
	*m = next
	return known, dependsOn
}

func (m *modelHolder) settle(p modelPending, succeeded bool) {
	for _, hash := range p.hashes {
		i := m.find(hash)
		if i < 0 || (*m)[i].since > p.turn {
			continue
		}
		b := &(*m)[i]
		b.inFlight--
		b.confirmed = b.confirmed || succeeded
		if b.inFlight == 0 && !b.confirmed {
			*m = slices.Delete(*m, i, i+1)
		}
	}
}
