package routers

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"berth/llmserver"
)

// check fails unless the index is sound: who holds a segment holds the one before it and counts it as used later, what a segment
// is found by is what it holds, and everything adds up.
func (x *prefixIndex) check(t interface{ Fatalf(string, ...any) }) {
	size := 0
	held := make(map[uint32]uint32) // segments, and by how many
	for number := range x.holders {
		h, blocks := &x.holders[number], 0
		newer := make(map[uint32]bool)
		for i := h.newest; i != 0; i = x.holdings.at(i).older {
			at := x.holdings.at(i).segment
			if parent := x.segments.at(at).parent; parent != 0 && !newer[parent] {
				t.Fatalf("replica %d does not hold what comes before a segment, or forgets it sooner", number)
			}
			if x.holding(at, uint32(number)) != i || x.holdings.at(i).holder != uint32(number) {
				t.Fatalf("a holding of replica %d is not found", number)
			}
			newer[at] = true
			blocks += x.blocks(i)
			held[at]++
			size++
		}
		if blocks != h.blocks || blocks > x.perReplica {
			t.Fatalf("replica %d holds %d blocks, counts %d and may have %d", number, blocks, h.blocks, x.perReplica)
		}
	}
	if size != x.size || size > x.capacity {
		t.Fatalf("%d holdings, counted %d, of at most %d", size, x.size, x.capacity)
	}
	for at, count := range held {
		s := x.segments.at(at)
		if s.count != count || s.marks == 0 || x.beginning(s.hashes[0]) != at {
			t.Fatalf("%d hold a segment that counts %d, has %d marks and is found as %d", count, s.count, s.marks, x.beginning(s.hashes[0]))
		}
		if p := x.segments.at(s.parent); s.parent != 0 && p.start+p.marks != s.start || s.parent == 0 && s.start != 0 {
			t.Fatalf("a segment begins at %d, which is not where the one before it ends", s.start)
		}
	}
	x.checkBranches(t, held)
}

// checkBranches counts the chains that go on from each segment.
func (x *prefixIndex) checkBranches(t interface{ Fatalf(string, ...any) }, held map[uint32]uint32) {
	inner, branches, ends := make(map[uint32]bool), make(map[uint32]uint32), uint32(0)
	for i := range held {
		inner[x.segments.at(i).parent] = true
	}
	for i := range held {
		if !inner[i] {
			ends++
			for above := x.segments.at(i).parent; above != 0; above = x.segments.at(above).parent {
				branches[above]++
			}
		}
	}
	for i := range held {
		if got := x.segments.at(i).branches; got != branches[i] {
			t.Fatalf("%d chains go on from a segment; it counts %d", branches[i], got)
		}
	}
	if ends != x.ends {
		t.Fatalf("%d chains are held; it counts %d", ends, x.ends)
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

func TestTheIndexStaysWithinItsBudgetWhateverComes(t *testing.T) {
	for _, budget := range []int{minIndexBytes, 1 << 20, 3_000_000} {
		t.Run(fmt.Sprint(budget), func(t *testing.T) {
			x, random := newPrefixIndex(budget, 0), rand.New(rand.NewPCG(1, 2))
			for range 20 {
				x.enter(new(llmserver.Replica))
			}
			var claims []claim
			for i := range 3000 {
				c := long(random.IntN(500), 1+random.IntN(100))
				if i%500 == 0 {
					c = long(random.IntN(500), 100_000)
				}
				number := random.IntN(20)
				_, claim := x.learn(uint32(number), c)
				if x.match(c); int(x.depth[number]) != position(c.marks()) {
					t.Fatalf("of a prompt of %d blocks %d are known", len(c), x.depth[number])
				}
				if claims = append(claims, claim); len(claims) > 50 {
					x.settle(claims[0], random.IntN(2) == 0)
					claims = claims[1:]
				}
				if x.bytes() > budget {
					t.Fatalf("after %d prompts it takes %d bytes of %d", i, x.bytes(), budget)
				}
				if i%100 == 0 {
					x.check(t)
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

func TestAFullIndexHasRoomToSplitWhatNotTooManyHold(t *testing.T) {
	for replicas, learned := range map[int]bool{300: true, 600: false} {
		x := newPrefixIndex(minIndexBytes, 0)
		everybodys := long(1, segmentMarks)
		claims := make([]claim, replicas)
		for i := range claims {
			x.enter(new(llmserver.Replica))
			_, claims[i] = x.learn(uint32(i), everybodys)
		}
		for i := range x.capacity {
			x.learn(0, long(2+i, 1))
		}
		part := chainOf(1, 0, 0, 0, 0, 0, 5, 5, 5) // half a segment of it is everybody's
		known, c := x.learn(7, part)
		x.check(t)
		if x.match(part); learned != (known == segmentMarks/2 && int(x.depth[7]) == len(part)) {
			t.Errorf("with %d replicas, %d blocks were known and %d are now", replicas, known, x.depth[7])
		}
		x.settle(c, false)
		x.settle(claims[7], true)
		x.check(t)
		if i := x.holding(x.beginning(everybodys[0]), 7); x.holdings.at(i).claims != 0 || !x.holdings.at(i).confirmed {
			t.Errorf("with %d replicas, what was known before is not as it was", replicas)
		}
	}
}

func TestAConversationThatGrowsByLittleTakesFewSegments(t *testing.T) {
	x := newPrefixIndex(minIndexBytes, 0)
	x.enter(new(llmserver.Replica))
	for turn := range dense {
		_, c := x.learn(0, long(1, turn+1))
		x.settle(c, true)
		x.check(t)
	}
	if most := 2 * dense / segmentMarks; x.size > most {
		t.Errorf("%d blocks that came one by one are %d segments; want at most %d", dense, x.size, most)
	}
}

func TestWhatWasUsedLongerAgoIsForgottenSooner(t *testing.T) {
	x := newPrefixIndex(minIndexBytes, 10)
	r := x.enter(new(llmserver.Replica))
	_, beginning := x.learn(r, long(1, 4))
	x.settle(beginning, true)
	_, whole := x.learn(r, long(1, 6))
	x.learn(r, long(2, 2))
	x.learn(r, long(1, 4))
	x.settle(whole, true)
	x.learn(r, long(3, 4))
	if first, second := x.match(long(1, 6)), x.match(long(2, 2)); first != 4 || second != 2 {
		t.Errorf("it still knows %d blocks of a prompt whose end it used before another one, of which it knows %d; want 4 and 2", first, second)
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
	for range 7 {
		x.enter(new(llmserver.Replica))
	}
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

func TestWhatIsCommonToFewOfManyIsWorthAsMuchAsAConversation(t *testing.T) {
	x := newPrefixIndex(minIndexBytes, 0)
	r := x.enter(new(llmserver.Replica))
	x.enter(new(llmserver.Replica))
	for i := range 30 {
		x.learn(r, long(100+i, 2))
	}
	for i := range 10 { // of 40 in all, of which a replica's share is 20
		x.learn(r, chainOf(1, 2, 3, 10+i))
	}
	x.match(chainOf(1, 2, 3))
	if got := x.worth[r]; got != 3*recompute {
		t.Errorf("three blocks that a fourth of all begin with are worth %d; want %d", got, 3*recompute)
	}
	for i := range 30 {
		x.learn(r, chainOf(1, 2, 3, 20+i))
	}
	x.match(chainOf(1, 2, 3))
	if got, want := x.worth[r], 3*(recompute*49/144); got != want { // 40 of 70 are 12/7 of two thirds of 35
		t.Errorf("three blocks that most begin with are worth %d; want %d", got, want)
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
