package routers

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"berth/llmserver"
)

// check fails unless the index is sound: who holds a mark of a chain holds those
// before it, and everything adds up.
func (x *prefixIndex) check(t interface{ Fatalf(string, ...any) }, chains []chain) {
	size := 0
	held := make(map[uint32]bool) // marks
	for number := range x.holders {
		h, blocks := &x.holders[number], 0
		for i := h.oldest; i != 0; i = x.holdings.at(i).newer {
			blocks += int(x.holdings.at(i).span)
			held[x.holdings.at(i).mark] = true
			size++
		}
		if blocks != h.blocks || blocks > x.perReplica {
			t.Fatalf("replica %d holds %d blocks, counts %d and may have %d", number, blocks, h.blocks, x.perReplica)
		}
		for _, c := range chains {
			for k := 1; k < c.marks(); k++ {
				if x.holding(x.mark(c.mark(k)), uint32(number)) != 0 && x.holding(x.mark(c.mark(k-1)), uint32(number)) == 0 {
					t.Fatalf("replica %d holds mark %d of a chain and not the one before", number, k)
				}
			}
		}
	}
	if size != x.size || size > x.capacity {
		t.Fatalf("%d holdings, counted %d, of at most %d", size, x.size, x.capacity)
	}
	x.checkBranches(t, held)
}

// checkBranches counts the chains that go on from each mark.
func (x *prefixIndex) checkBranches(t interface{ Fatalf(string, ...any) }, held map[uint32]bool) {
	inner, branches := make(map[uint32]bool), make(map[uint32]uint32)
	for i := range held {
		inner[x.marks.at(i).parent] = true
	}
	for i := range held {
		if !inner[i] {
			for above := x.marks.at(i).parent; above != 0; above = x.marks.at(above).parent {
				branches[above]++
			}
		}
	}
	for i := range held {
		if got := x.marks.at(i).branches; got != branches[i] {
			t.Fatalf("%d chains go on from a mark; it counts %d", branches[i], got)
		}
	}
}

// chainOf makes a chain of blocks named by numbers: equal beginnings hash alike.
func chainOf(blocks ...int) chain {
	c, hash := make(chain, len(blocks)), uint64(0)
	for i, b := range blocks {
		hash = (hash ^ uint64(b+1)) * 0x9e3779b97f4a7c15
		hash ^= hash >> 29
		c[i] = hash
	}
	return c
}

// long is a chain of n blocks that differ from those of another seed.
func long(seed, n int) chain {
	blocks := slices.Repeat([]int{0}, n)
	blocks[0] = seed
	return chainOf(blocks...)
}

func TestMarksAreThePositionsThatTheySay(t *testing.T) {
	for n := range 5000 {
		c := make(chain, n)
		k := c.marks()
		if position(k) > n || position(k+1) <= n {
			t.Fatalf("a chain of %d has %d marks, the last at %d and the next at %d", n, k, position(k), position(k+1))
		}
		if n-position(k) > n/(dense/2) {
			t.Fatalf("of a chain of %d only %d are known", n, position(k))
		}
	}
	if k := make(chain, 1024).marks(); k != 192 {
		t.Errorf("a thousand blocks have %d marks", k)
	}
}

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
		limit := rapid.IntRange(1, 12).Draw(t, "blocks per replica")
		x := newPrefixIndex(minIndexBytes, limit)
		var model [replicas]known
		for range replicas {
			x.enter(new(llmserver.Replica))
		}
		var claims []modelClaim
		var chains []chain
		turn := 0
		some := func() (int, chain) {
			c := chainOf(rapid.SliceOfN(rapid.IntRange(0, 1), 0, 6).Draw(t, "blocks")...)
			chains = append(chains, c)
			return rapid.IntRange(0, replicas-1).Draw(t, "replica"), c
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { x.check(t, chains) },
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

func TestTheIndexStaysWithinItsBudgetWhateverComes(t *testing.T) {
	for _, budget := range []int{minIndexBytes, 1 << 20, 3_000_000} {
		t.Run(fmt.Sprint(budget), func(t *testing.T) {
			x, random := newPrefixIndex(budget, 0), rand.New(rand.NewPCG(1, 2))
			for range 20 {
				x.enter(new(llmserver.Replica))
			}
			var claims []claim
			var chains []chain
			for i := range 3000 {
				c := long(random.IntN(500), 1+random.IntN(100))
				if i%500 == 0 {
					c = long(random.IntN(500), 100_000)
				}
				chains = append(chains[max(0, len(chains)-20):], c)
				_, claim := x.learn(uint32(random.IntN(20)), c)
				if claims = append(claims, claim); len(claims) > 50 {
					x.settle(claims[0], random.IntN(2) == 0)
					claims = claims[1:]
				}
				if x.bytes() > budget {
					t.Fatalf("after %d prompts it takes %d bytes of %d", i, x.bytes(), budget)
				}
				if i%100 == 0 {
					x.check(t, chains)
				}
			}
			if x.size < x.capacity/2 {
				t.Errorf("it holds %d of %d although more was sent", x.size, x.capacity)
			}
			for number := range x.holders {
				x.leave(uint32(number))
			}
			if x.size != 0 || len(x.vacant) != 20 {
				t.Errorf("with everybody gone it holds %d", x.size)
			}
		})
	}
}

func TestWhoHoldsTheMostMakesRoom(t *testing.T) {
	x := newPrefixIndex(minIndexBytes, 0)
	small, big := x.enter(new(llmserver.Replica)), x.enter(new(llmserver.Replica))
	x.learn(small, long(1, 30))
	for i := range 100 {
		x.learn(big, long(100+i, 40))
	}
	if x.match(long(1, 30)) != 30 || x.depth[small] != 30 {
		t.Error("what a replica with little held has made room for the one with the most")
	}
}

func TestWhatManyHaveInCommonIsWorthLess(t *testing.T) {
	x := newPrefixIndex(minIndexBytes, 0)
	r := x.enter(new(llmserver.Replica))
	common := []int{1, 2, 3}
	one := chainOf(append(common, 10, 11)...)
	_, first := x.learn(r, one)
	worths := func() int {
		x.match(one)
		return x.worth[r]
	}
	if got := worths(); got != 5*recompute {
		t.Errorf("five blocks of one conversation are worth %d; want %d", got, 5*recompute)
	}
	var claims []claim
	for i, want := range []int{recompute / 4, recompute / 9, recompute / 16} {
		_, c := x.learn(r, chainOf(append(common, 20+i)...))
		claims = append(claims, c)
		if got := worths(); got != 3*want+2*recompute {
			t.Errorf("with %d conversations the first is worth %d; want %d", 2+i, got, 3*want+2*recompute)
		}
	}
	for _, c := range claims {
		x.settle(c, false)
	}
	if got := worths(); got != 5*recompute {
		t.Errorf("with the others gone it is worth %d; want %d", got, 5*recompute)
	}
	x.settle(first, false)
	if got := worths(); got != 0 {
		t.Errorf("what nobody holds is worth %d", got)
	}
}

func BenchmarkMatch(b *testing.B) {
	x := newPrefixIndex(64<<20, 0)
	for r := range 64 {
		x.enter(new(llmserver.Replica))
		x.learn(uint32(r), chainOf(slices.Repeat([]int{0}, 20+r%16*10)...))
	}
	prompt := chainOf(slices.Repeat([]int{0}, 200)...)
	for b.Loop() {
		x.match(prompt)
	}
}
