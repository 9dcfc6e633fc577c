package simulated

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
	segmentTree
	blockTokens int
	capacity    int
	blank       int // held, content not computed yet
}

// NewCache makes an empty cache of tokens/blockTokens blocks.
func NewCache(tokens, blockTokens int) *Cache {
	return &Cache{segmentTree: newSegmentTree(), blockTokens: blockTokens, capacity: tokens / blockTokens}
}

// Capacity is the number of blocks.
func (c *Cache) Capacity() int { return c.capacity }

// Held is the number of blocks that sequences hold now; the others are empty or can be evicted.
func (c *Cache) Held() int { return c.known - c.idle + c.blank }

// Match is how many leading blocks of the chain are in memory. It changes nothing, not even the order of eviction.
func (c *Cache) Match(chain []uint64) int { return c.matchChain(chain).blocks }

// Clear forgets every block that nobody holds.
func (c *Cache) Clear() { c.evictBlocks(c.idle) }

// A Lease is the memory that one sequence holds: the blocks from the start of its chain up to one, and blank ones.
type Lease struct {
	cache  *Cache
	last   segmentID // the run that ends with the last block
	pinned int
	blank  int
}

// Lease pins the leading blocks of the chain that are in memory and sets blank blocks aside up to the given total; false if
// there is no room for that, and then nothing has changed.
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

// Known is how many leading blocks of the sequence have their content: those found by Lease and those added by Extend.
func (l *Lease) Known() int { return l.pinned }

// Extend says that the blocks of the chain have been computed up to its end: blank blocks get their content and are there for
// others from now on. Where another sequence computed the same block first, that one is pinned and the blank one is free.
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
			break // nor is there anything that comes after it
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

// Release gives the memory back; it can be called again without effect. Known blocks stay as the most recently used, the
// end of the chain to be evicted before its beginning, without which it would be useless.
func (l *Lease) Release() {
	c := l.cache
	c.blank -= l.blank
	for at := l.last; at != 0; at = c.segment(at).parent {
		c.unpinSegment(at)
	}
	l.last, l.pinned, l.blank = 0, 0, 0
}
