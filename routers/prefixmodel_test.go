package routers

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"berth/llmserver"
)

// known is a naive model of what one replica holds: the newest first.
type known []knownBlock

type knownBlock struct {
	hash      uint64
	since     int
	claims    int
	confirmed bool
}

func (k known) find(hash uint64) int {
	return slices.IndexFunc(k, func(b knownBlock) bool { return b.hash == hash })
}

// modelClaim is a claim of the index and the same of the model.
type modelClaim struct {
	claim
	hashes []uint64
	turn   int
}

func TestTheIndexKnowsWhatANaiveOneKnows(t *testing.T) {
	const replicas = 3
	rapid.Check(t, func(t *rapid.T) {
		stretch := rapid.SampledFrom([]int{1, segmentMarks/2 - 1}).Draw(t, "stretch") // so that chains are of several segments
		limit := rapid.IntRange(1, 12*stretch).Draw(t, "blocks per replica")
		x := newPrefixIndex(minIndexBytes, limit)
		var model [replicas]known
		for range replicas {
			x.enter(new(llmserver.Replica))
		}
		var claims []modelClaim
		turn := 0
		some := func() (int, chain) {
			fork := rapid.SampledFrom([]int{0, 2, 4, 6}).Draw(t, "fork") * stretch
			blocks := slices.Concat(slices.Repeat([]int{0}, fork), slices.Repeat([]int{1}, 6*stretch-fork))
			return rapid.IntRange(0, replicas-1).Draw(t, "replica"), chainOf(blocks...)[:rapid.IntRange(0, 6*stretch).Draw(t, "length")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { x.check(t) },
			"learn": func(*rapid.T) {
				r, c := some()
				turn++
				want, hashes := model[r].learn(c[:min(limit, len(c))], limit, turn)
				got, claim := x.learn(uint32(r), c)
				if got != want {
					t.Fatalf("%d blocks were known; want %d", got, want)
				}
				claims = append(claims, modelClaim{claim, hashes, turn})
			},
			"settle": func(t *rapid.T) {
				if len(claims) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(claims)-1).Draw(t, "claim")
				c, confirmed := claims[i], rapid.Bool().Draw(t, "confirmed")
				claims = slices.Delete(claims, i, i+1)
				x.settle(c.claim, confirmed)
				model[c.number].settle(c, confirmed)
			},
			"forget": func(*rapid.T) {
				r := rapid.IntRange(0, replicas-1).Draw(t, "replica")
				x.forget(uint32(r))
				model[r] = nil
			},
			"match": func(*rapid.T) {
				_, c := some()
				longest, most := x.match(c), 0
				for r := range model {
					want := 0
					for want < len(c) && model[r].find(c[want]) >= 0 {
						want++
					}
					most = max(most, want)
					if got := int(x.depth[r]); got != want {
						t.Fatalf("replica %d matches %d blocks; want %d", r, got, want)
					}
				}
				if longest != most {
					t.Fatalf("the longest match is %d; want %d", longest, most)
				}
			},
		})
	})
}

func (k *known) learn(c chain, limit, turn int) (had int, claimed []uint64) {
	for had < len(c) && k.find(c[had]) >= 0 {
		had++
	}
	next := make(known, 0, len(c))
	for i, hash := range c {
		b := knownBlock{hash: hash, since: turn}
		if i < had {
			b = (*k)[k.find(hash)]
		}
		if !b.confirmed {
			b.claims++
			claimed = append(claimed, hash)
		}
		next = append(next, b)
	}
	for _, b := range *k {
		if !slices.Contains(c, b.hash) && len(next) < limit {
			next = append(next, b)
		}
	}
	*k = next
	return had, claimed
}

func (k *known) settle(c modelClaim, confirmed bool) {
	for _, hash := range c.hashes {
		i := k.find(hash)
		if i < 0 || (*k)[i].since > c.turn {
			continue
		}
		b := &(*k)[i]
		b.claims--
		b.confirmed = b.confirmed || confirmed
		if b.claims == 0 && !b.confirmed {
			*k = slices.Delete(*k, i, i+1)
		}
	}
}
