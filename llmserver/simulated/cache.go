package simulated

// A Cache is the KV memory of one engine: a fixed number of blocks, each of a fixed number of
// tokens. A block with a known hash outlives its sequence and serves every later prompt starting
// with the same blocks. When memory is needed, the least recently used block without a lease is
// evicted.
//
// A block is in one of three states; their sum never exceeds the capacity:
//
//	blank ──Extend──▶ pinned ◀──Lease / last Release──▶ idle ──eviction──▶ gone
//
// The caller chains the hashes, so equal hashes mean equal content from the start of the prompt. A
// Cache must be used by one goroutine only.
type Cache struct {
	segmentTree
	blockTokens int
	capacity    int
	blank       int // held, content not computed yet
}

// NewCache returns an empty cache of tokens/blockTokens blocks.
func NewCache(tokens, blockTokens int) *Cache {
	return &Cache{segmentTree: newSegmentTree(), blockTokens: blockTokens, capacity: tokens / blockTokens}
}

// Capacity returns the number of blocks.
func (c *Cache) Capacity() int { return c.capacity }

// Held returns the number of blocks held by leases; the others are empty or can be evicted.
func (c *Cache) Held() int { return c.known - c.idle + c.blank }

// Match returns the number of leading blocks of the chain in memory. It changes nothing, not even
// the order of eviction.
func (c *Cache) Match(chain []uint64) int { return c.matchChain(chain).blocks }

// Clear evicts all blocks without a lease.
func (c *Cache) Clear() { c.evictBlocks(c.idle) }

// A Lease is the memory held by one sequence: known blocks from the start of its chain, and blank
// blocks.
type Lease struct {
	cache  *Cache
	last   segmentID // ends with the last pinned block
	pinned int
	blank  int
}

// Lease pins the leading blocks of the chain in memory and reserves blank blocks up to the given
// total. It reports false and changes nothing if there is not enough room.
func (c *Cache) Lease(chain []uint64, blocks int) (l Lease, ok bool) {
	f := c.matchChain(chain[:min(len(chain), blocks)])
	blank := blocks - f.blocks
	if c.Held()+f.idle+blank > c.capacity {
		return Lease{}, false
	}
	l = Lease{cache: c, last: c.split(f.last, f.part), pinned: f.blocks, blank: blank}
	for at := l.last; at != 0; at = c.segment(at).parent {
		c.pinSegment(at)
	}
	c.blank += blank
	c.evictBlocks(c.known + c.blank - c.capacity)
	return l, true
}

// Known returns how many leading blocks of the sequence have their content, found by Lease or added
// by Extend.
func (l *Lease) Known() int { return l.pinned }

// Extend records the computation of all blocks of the chain. Blank blocks get their content and can
// be shared afterwards. If another sequence has computed the same block first, the other's block is
// pinned and the blank one is freed.
func (l *Lease) Extend(chain []uint64) {
	c := l.cache
	chain = chain[min(l.pinned, len(chain)):]
	chain = chain[:min(l.blank, len(chain))]
	l.blank -= len(chain)
	c.blank -= len(chain)
	l.pinned += len(chain)
	for len(chain) > 0 {
		at, n := c.child(l.last, chain)
		if n == 0 {
			break
		}
		l.last = c.split(at, n)
		c.pinSegment(l.last)
		chain = chain[n:]
	}
	for len(chain) > 0 {
		at, n := c.appendBlocks(l.last, chain)
		l.last = at
		chain = chain[n:]
	}
}

// Release releases the memory; a second call does nothing. Known blocks stay in the cache as the
// most recently used ones. The end of the chain is evicted before the start, since an end alone is
// useless.
func (l *Lease) Release() {
	c := l.cache
	c.blank -= l.blank
	for at := l.last; at != 0; at = c.segment(at).parent {
		c.unpinSegment(at)
	}
	l.last, l.pinned, l.blank = 0, 0, 0
}
