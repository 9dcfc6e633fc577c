package simulated

import "math"

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
	known       map[uint64]place
	blocks      []block // by place; at place 0 is no block, but the start of every chain and both ends of the idle ones
	vacant      []place // of blocks that are gone
	idle        int     // blocks that nobody holds
	blank       int     // held, content not computed yet
}

// place is where in the cache a block lies. Places and no pointers, of which there would be millions, are
// what the garbage collector passes by.
type place uint32

type block struct {
	hash         uint64
	pins         uint32 // how many hold it, or gone
	next         place  // the block that was last found after it, which is where the next prompt mostly goes too
	older, newer place  // among the idle
}

// gone is no number of pins.
const gone = math.MaxUint32

// NewCache makes an empty cache of tokens/blockTokens blocks.
func NewCache(tokens, blockTokens int) *Cache {
	return &Cache{blockTokens: blockTokens, capacity: tokens / blockTokens, known: map[uint64]place{}, blocks: make([]block, 1)}
}

// Capacity is the number of blocks.
func (c *Cache) Capacity() int { return c.capacity }

// Held is the number of blocks that sequences hold now; the others are empty or can be evicted.
func (c *Cache) Held() int { return len(c.known) - c.idle + c.blank }

// Match is how many leading blocks of the chain are in memory. It changes nothing, not even the order of eviction.
func (c *Cache) Match(chain []uint64) int {
	at := place(0)
	for i, hash := range chain {
		if at = c.after(at, hash); at == 0 {
			return i
		}
	}
	return len(chain)
}

// Clear forgets every block that nobody holds.
func (c *Cache) Clear() { c.evict(c.idle) }

// A Lease is the memory that one sequence holds.
type Lease struct {
	cache  *Cache
	pinned []place // a prefix of the sequence's chain
	blank  int
}

// Lease pins the leading blocks of the chain that are in memory and sets blank blocks aside up to the given total. If
// there is no room for that, it returns nil and nothing has changed.
func (c *Cache) Lease(chain []uint64, blocks int) *Lease {
	l := &Lease{cache: c}
	revived := 0
	for at := place(0); len(l.pinned) < min(len(chain), blocks); {
		if at = c.after(at, chain[len(l.pinned)]); at == 0 {
			break
		}
		if l.pinned == nil {
			l.pinned = make([]place, 0, len(chain))
		}
		if c.blocks[at].pins == 0 {
			revived++
		}
		l.pinned = append(l.pinned, at)
	}
	l.blank = blocks - len(l.pinned)
	if c.Held()+revived+l.blank > c.capacity {
		return nil
	}
	for _, at := range l.pinned {
		c.pin(at)
	}
	c.blank += l.blank
	c.evict(len(c.known) + c.blank - c.capacity)
	return l
}

// Known is how many leading blocks of the sequence have their content: those found by Lease and those added by Extend.
func (l *Lease) Known() int { return len(l.pinned) }

// Extend says that the blocks of the chain have been computed up to its end: blank blocks get their content and are there for
// others from now on. Where another sequence computed the same block first, that one is pinned and the blank one is free.
func (l *Lease) Extend(chain []uint64) {
	c := l.cache
	last := place(0)
	if n := len(l.pinned); n > 0 {
		last = l.pinned[n-1]
	}
	for _, hash := range chain[min(len(l.pinned), len(chain)):] {
		if l.blank == 0 {
			return
		}
		l.blank--
		c.blank--
		at := c.after(last, hash)
		if at == 0 {
			at = c.add(hash)
			c.blocks[last].next = at
		} else {
			c.pin(at)
		}
		l.pinned = append(l.pinned, at)
		last = at
	}
}

// Release gives the memory back; it can be called again without effect. Known blocks stay as the most recently used, the
// end of the chain to be evicted before its beginning, without which it would be useless.
func (l *Lease) Release() {
	c := l.cache
	c.blank -= l.blank
	for i := len(l.pinned) - 1; i >= 0; i-- {
		c.unpin(l.pinned[i])
	}
	l.pinned, l.blank = nil, 0
}

// after finds the block with a hash that follows another one in a chain, 0 if there is none. What was found there the last
// time is looked at first, and is nearly always it.
func (c *Cache) after(at place, hash uint64) place {
	next := c.blocks[at].next
	if b := &c.blocks[next]; next != 0 && b.hash == hash && b.pins != gone {
		return next
	}
	if next = c.known[hash]; next != 0 {
		c.blocks[at].next = next
	}
	return next
}

// add makes a block that has one pin.
func (c *Cache) add(hash uint64) (at place) {
	if n := len(c.vacant); n > 0 {
		at, c.vacant = c.vacant[n-1], c.vacant[:n-1]
	} else {
		at = place(len(c.blocks))
		c.blocks = append(c.blocks, block{})
	}
	c.blocks[at] = block{hash: hash, pins: 1}
	c.known[hash] = at
	return at
}

func (c *Cache) pin(at place) {
	b := &c.blocks[at]
	if b.pins == 0 {
		c.blocks[b.older].newer, c.blocks[b.newer].older = b.newer, b.older
		c.idle--
	}
	b.pins++
}

func (c *Cache) unpin(at place) {
	b, ends := &c.blocks[at], &c.blocks[0]
	if b.pins--; b.pins == 0 {
		b.older, b.newer = ends.older, 0
		c.blocks[b.older].newer, ends.older = at, at
		c.idle++
	}
}

func (c *Cache) evict(blocks int) {
	for range blocks {
		at := c.blocks[0].newer // the oldest
		c.pin(at)
		b := &c.blocks[at]
		delete(c.known, b.hash)
		b.pins = gone
		c.vacant = append(c.vacant, at)
	}
}
