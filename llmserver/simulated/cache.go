package simulated

import "container/list"

// Cache is the KV memory of one engine: a fixed number of blocks, each of a fixed number of tokens. A block whose content is
// known by its hash outlives the sequence that computed it and serves every later prompt that starts with the same
// blocks, until the memory is needed: the least recently used goes first, a held one never.
//
// A block is one of three things, and their sum never exceeds the capacity:
//
//	blank ──Extend──▶ pinned ◀──Lease / last Release──▶ idle ──eviction──▶ gone
//
// Hashes are chained by the caller: equal hashes mean equal content from the start of the prompt. A Cache belongs to one goroutine.
type Cache struct {
	blockTokens int
	capacity    int
	known       map[uint64]*block
	idle        *list.List // of *block, the next to evict in front
	blank       int        // held, content not computed yet
}

type block struct {
	hash uint64
	pins int
	idle *list.Element // nil while pinned
}

// NewCache makes an empty cache of tokens/blockTokens blocks.
func NewCache(tokens, blockTokens int) *Cache {
	return &Cache{blockTokens: blockTokens, capacity: tokens / blockTokens, known: map[uint64]*block{}, idle: list.New()}
}

// Capacity is the number of blocks.
func (c *Cache) Capacity() int { return c.capacity }

// Held is the number of blocks that sequences hold now; the others are empty or can be evicted.
func (c *Cache) Held() int { return len(c.known) - c.idle.Len() + c.blank }

// Match is how many leading blocks of the chain are in memory. It changes nothing, not even the order of eviction.
func (c *Cache) Match(chain []uint64) int {
	for i, hash := range chain {
		if c.known[hash] == nil {
			return i
		}
	}
	return len(chain)
}

// Clear forgets every block that nobody holds.
func (c *Cache) Clear() { c.evict(c.idle.Len()) }

// A Lease is the memory that one sequence holds.
type Lease struct {
	cache  *Cache
	pinned []*block // a prefix of the sequence's chain
	blank  int
}

// Lease pins the leading blocks of the chain that are in memory and sets blank blocks aside up to the given total. If
// there is no room for that, it returns nil and nothing has changed.
func (c *Cache) Lease(chain []uint64, blocks int) *Lease {
	hits := min(c.Match(chain), blocks)
	revived := 0
	for _, hash := range chain[:hits] {
		if c.known[hash].idle != nil {
			revived++
		}
	}
	blank := blocks - hits
	if c.Held()+revived+blank > c.capacity {
		return nil
	}
	l := &Lease{cache: c, blank: blank}
	for _, hash := range chain[:hits] {
		l.pin(c.known[hash])
	}
	c.blank += blank
	c.evict(len(c.known) + c.blank - c.capacity)
	return l
}

// Known is how many leading blocks of the sequence have their content: those found by Lease and those added by Extend.
func (l *Lease) Known() int { return len(l.pinned) }

// Extend says that the blocks of the chain have been computed up to its end: blank blocks get their content and are there for
// others from now on. Where another sequence computed the same block first, that one is pinned and the blank one is free.
func (l *Lease) Extend(chain []uint64) {
	c := l.cache
	for _, hash := range chain[min(len(l.pinned), len(chain)):] {
		if l.blank == 0 {
			return
		}
		l.blank--
		c.blank--
		b := c.known[hash]
		if b == nil {
			b = &block{hash: hash}
			c.known[hash] = b
		}
		l.pin(b)
	}
}

// Release gives the memory back; it can be called again without effect. Known blocks stay as the most recently used, the
// end of the chain to be evicted before its beginning, without which it would be useless.
func (l *Lease) Release() {
	c := l.cache
	c.blank -= l.blank
	for i := len(l.pinned) - 1; i >= 0; i-- {
		b := l.pinned[i]
		if b.pins--; b.pins == 0 {
			b.idle = c.idle.PushBack(b)
		}
	}
	l.pinned, l.blank = nil, 0
}

func (l *Lease) pin(b *block) {
	if b.idle != nil {
		l.cache.idle.Remove(b.idle)
		b.idle = nil
	}
	b.pins++
	l.pinned = append(l.pinned, b)
}

func (c *Cache) evict(blocks int) {
	for range blocks {
		b := c.idle.Remove(c.idle.Front()).(*block)
		delete(c.known, b.hash)
	}
}
