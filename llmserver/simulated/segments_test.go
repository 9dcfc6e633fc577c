package simulated

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// plainCache is the model of a Cache: block by block, and slow.
type plainCache struct {
	capacity int
	blocks   map[uint64]*plainBlock
	idle     []uint64 // the oldest first
	blank    int
}

type plainBlock struct {
	before uint64
	pins   int
}

type plainLease struct {
	chain []uint64 // the pinned part
	blank int
}

func (c *plainCache) held() int { return len(c.blocks) - len(c.idle) + c.blank }

func (c *plainCache) match(chain []uint64) (n int) {
	for n < len(chain) && c.blocks[chain[n]] != nil {
		n++
	}
	return n
}

func (c *plainCache) lease(chain []uint64, blocks int) *plainLease {
	found := chain[:c.match(chain[:min(len(chain), blocks)])]
	l := &plainLease{found, blocks - len(found)}
	revived := 0
	for _, hash := range found {
		if c.blocks[hash].pins == 0 {
			revived++
		}
	}
	if c.held()+revived+l.blank > c.capacity {
		return nil
	}
	for _, hash := range found {
		c.pin(hash)
	}
	c.blank += l.blank
	c.evict(len(c.blocks) + c.blank - c.capacity)
	return l
}

func (c *plainCache) extend(l *plainLease, chain []uint64) {
	for n := len(l.chain); n < len(chain) && l.blank > 0; n++ {
		if c.blocks[chain[n]] == nil {
			c.blocks[chain[n]] = &plainBlock{}
			if n > 0 {
				c.blocks[chain[n]].before = chain[n-1]
			}
		}
		c.pin(chain[n])
		l.chain = chain[:n+1]
		l.blank--
		c.blank--
	}
}

func (c *plainCache) release(l *plainLease) {
	c.blank -= l.blank
	for _, hash := range slices.Backward(l.chain) {
		if b := c.blocks[hash]; b.pins == 1 {
			c.idle = append(c.idle, hash)
		}
		c.blocks[hash].pins--
	}
	*l = plainLease{}
}

func (c *plainCache) pin(hash uint64) {
	c.idle = slices.DeleteFunc(c.idle, func(h uint64) bool { return h == hash })
	c.blocks[hash].pins++
}

func (c *plainCache) evict(blocks int) {
	for range blocks {
		delete(c.blocks, c.idle[0])
		c.idle = c.idle[1:]
	}
}

// drawChain draws a chain that branches off where the drawn turns are not 0.
func drawChain(t *rapid.T) (chain []uint64) {
	hash := uint64(0)
	for range rapid.IntRange(0, 4).Draw(t, "runs") {
		turn := rapid.Uint64Range(0, 1).Draw(t, "turn")
		for range rapid.IntRange(1, segmentBlocks+2).Draw(t, "length") {
			hash = mix(hash + turn)
			chain = append(chain, hash)
			turn = 0
		}
	}
	return chain
}

func TestCacheMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plain := &plainCache{capacity: rapid.IntRange(1, 60).Draw(t, "capacity"), blocks: map[uint64]*plainBlock{}}
		c := NewCache(plain.capacity, 1)
		type pair struct {
			lease Lease
			plain *plainLease
			chain []uint64
		}
		var leases []*pair
		draw := func(t *rapid.T) int {
			if len(leases) == 0 {
				t.Skip()
			}
			return rapid.IntRange(0, len(leases)-1).Draw(t, "lease")
		}
		actions := map[string]func(*rapid.T){
			"lease": func(t *rapid.T) {
				chain := drawChain(t)
				known := rapid.IntRange(0, len(chain)).Draw(t, "known")
				blocks := max(0, len(chain)+rapid.IntRange(-3, 3).Draw(t, "extra"))
				if got, want := c.Match(chain), plain.match(chain); got != want {
					t.Fatalf("%d blocks of %d found, want %d", got, len(chain), want)
				}
				l, ok := c.Lease(chain[:known], blocks)
				p := plain.lease(chain[:known], blocks)
				if ok != (p != nil) {
					t.Fatalf("a lease of %d blocks: %v, want %v", blocks, ok, !ok)
				}
				if ok {
					leases = append(leases, &pair{l, p, chain})
				}
			},
			"extend": func(t *rapid.T) {
				l := leases[draw(t)]
				to := rapid.IntRange(0, len(l.chain)).Draw(t, "to")
				l.lease.Extend(l.chain[:to])
				plain.extend(l.plain, l.chain[:to])
			},
			"release": func(t *rapid.T) {
				i := draw(t)
				leases[i].lease.Release()
				plain.release(leases[i].plain)
				leases = slices.Delete(leases, i, i+1)
			},
			"cut": func(t *rapid.T) { // may happen anywhere and has no visible effect
				at := segmentID(rapid.IntRange(0, int(c.allocated)-1).Draw(t, "run"))
				if n := int(c.segment(at).blocks); n > 1 {
					c.split(at, rapid.IntRange(1, n-1).Draw(t, "blocks"))
				}
			},
			"clear": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
					c.Clear()
					plain.evict(len(plain.idle))
				}
			},
			"": func(t *rapid.T) {
				for _, l := range leases {
					if got, want := l.lease.Known(), len(l.plain.chain); got != want {
						t.Fatalf("a lease knows %d blocks, want %d", got, want)
					}
				}
				if got, want := c.Held(), plain.held(); got != want {
					t.Fatalf("%d blocks held, want %d", got, want)
				}
				c.mustMatch(t, plain)
			},
		}
		for range 5 { // so that a cache lives long
			t.Repeat(actions)
		}
	})
}

// mustMatch checks that the segments are consistent and have the same blocks in the same eviction
// order as the plain cache.
func (c *Cache) mustMatch(t *rapid.T, plain *plainCache) {
	blocks := map[uint64]*plainBlock{}
	seen, vacant := 0, 0
	for i := range c.buckets {
		for at := c.buckets[i]; at != 0; at = c.segment(at).hashNext {
			r, hash := c.segment(at), uint64(0)
			if seen++; seen >= int(c.allocated) || r.blocks == 0 {
				t.Fatalf("run %d has %d blocks, and is the %dth of %d in a list", at, r.blocks, seen, c.allocated-1)
			}
			if before := c.segment(r.parent); r.parent != 0 {
				hash = before.hashes[before.blocks-1]
			}
			for _, h := range r.hashes[:r.blocks] {
				blocks[h], hash = &plainBlock{hash, int(r.pins)}, h
			}
			if c.bucket(r.hashes[0]) != &c.buckets[i] {
				t.Fatalf("run %d is in a list where its first hash is not looked for", at)
			}
		}
	}
	for at := c.freeList; at != 0; at = c.segment(at).hashNext {
		vacant++
	}
	if 1+seen+vacant != int(c.allocated) {
		t.Fatalf("%d runs in lists and %d vacant of %d", seen, vacant, c.allocated-1)
	}
	if !maps.EqualFunc(blocks, plain.blocks, func(a, b *plainBlock) bool { return *a == *b }) || c.known != len(blocks) {
		t.Fatalf("%d blocks, %d by count, want %d, or with other pins or others before them", len(blocks), c.known, len(plain.blocks))
	}
	var idle []uint64
	for at, older := c.segment(0).lruNewer, segmentID(0); at != 0; at, older = c.segment(at).lruNewer, at {
		r := c.segment(at)
		if r.lruOlder != older || r.pins != 0 {
			t.Fatalf("run %d among the idle has %d pins and comes after %d, want %d", at, r.pins, r.lruOlder, older)
		}
		for _, hash := range slices.Backward(r.hashes[:r.blocks]) {
			idle = append(idle, hash)
		}
	}
	if !slices.Equal(idle, plain.idle) || c.idle != len(idle) {
		t.Fatalf("%d blocks idle, %d by count, want %d, or in another order", len(idle), c.idle, len(plain.idle))
	}
}
