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
	slabs       []*slab // of blocks, by place; at place 0 is no block, but the start of every chain and both ends of the idle ones
	places      place   // used at least once
	heads       []place // of the lists of known blocks, by hash; a power of two
	vacant      place   // the list of blocks that are gone
	known       int     // blocks whose content is
	idle        int     // of them, those that nobody holds
	blank       int     // held, content not computed yet
}

// place is where in the cache a block lies. Places and no pointers, of which there would be millions, are
// what the garbage collector passes by.
type place uint32

// block is half a cache line. The block before it in its chain is known as long as it is: whoever holds a block
// holds that one, too, and gives it back later.
type block struct {
	hash         uint64
	pins         uint32 // how many hold it, or gone
	before       place  // in its chain
	next         place  // the block that was last found after it, which is where the next prompt mostly goes too; 0: there was none yet
	below        place  // in its list of heads, or of the vacant
	older, newer place  // among the idle
}

// slab is memory for blocks. It is taken piece by piece, so that none is copied when there is to be more.
type slab [128]block

// gone is no number of pins.
const gone = math.MaxUint32

// NewCache makes an empty cache of tokens/blockTokens blocks.
func NewCache(tokens, blockTokens int) *Cache {
	return &Cache{blockTokens: blockTokens, capacity: tokens / blockTokens, slabs: []*slab{new(slab)}, places: 1, heads: make([]place, 1)}
}

// Capacity is the number of blocks.
func (c *Cache) Capacity() int { return c.capacity }

// Held is the number of blocks that sequences hold now; the others are empty or can be evicted.
func (c *Cache) Held() int { return c.known - c.idle + c.blank }

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

// A Lease is the memory that one sequence holds: the blocks from the start of its chain up to one, and blank ones.
type Lease struct {
	cache  *Cache
	last   place
	pinned int
	blank  int
}

// Lease pins the leading blocks of the chain that are in memory and sets blank blocks aside up to the given total; false if
// there is no room for that, and then nothing has changed.
func (c *Cache) Lease(chain []uint64, blocks int) (l Lease, ok bool) {
	l.cache = c
	revived := 0
	for _, hash := range chain[:min(len(chain), blocks)] {
		at := c.after(l.last, hash)
		if at == 0 {
			break
		}
		if c.block(at).pins == 0 {
			revived++
		}
		l.last = at
		l.pinned++
	}
	l.blank = blocks - l.pinned
	if c.Held()+revived+l.blank > c.capacity {
		return Lease{}, false
	}
	for at := l.last; at != 0; at = c.block(at).before {
		c.pin(at)
	}
	c.blank += l.blank
	c.evict(c.known + c.blank - c.capacity)
	return l, true
}

// Known is how many leading blocks of the sequence have their content: those found by Lease and those added by Extend.
func (l *Lease) Known() int { return l.pinned }

// Extend says that the blocks of the chain have been computed up to its end: blank blocks get their content and are there for
// others from now on. Where another sequence computed the same block first, that one is pinned and the blank one is free.
func (l *Lease) Extend(chain []uint64) {
	c := l.cache
	for _, hash := range chain[min(l.pinned, len(chain)):] {
		if l.blank == 0 {
			return
		}
		l.blank--
		c.blank--
		at := c.after(l.last, hash)
		if at == 0 {
			at = c.add(l.last, hash)
		} else {
			c.pin(at)
		}
		l.last = at
		l.pinned++
	}
}

// Release gives the memory back; it can be called again without effect. Known blocks stay as the most recently used, the
// end of the chain to be evicted before its beginning, without which it would be useless.
func (l *Lease) Release() {
	c := l.cache
	c.blank -= l.blank
	for at := l.last; at != 0; at = c.block(at).before {
		c.unpin(at)
	}
	l.last, l.pinned, l.blank = 0, 0, 0
}

// after finds the block with a hash that follows another one in a chain, 0 if there is none. What was found there the last
// time is looked at first, and is nearly always it; where nothing ever was, there is nothing.
func (c *Cache) after(at place, hash uint64) place {
	next := c.block(at).next
	if next == 0 {
		return 0
	}
	if b := c.block(next); b.hash == hash && b.pins != gone {
		return next
	}
	for next = *c.head(hash); next != 0; next = c.block(next).below {
		if c.block(next).hash == hash {
			c.block(at).next = next
			return next
		}
	}
	return 0
}

// head is the list in which a hash is, if it is known.
func (c *Cache) head(hash uint64) *place { return &c.heads[hash&uint64(len(c.heads)-1)] }

// add makes a block that follows another one and has one pin.
func (c *Cache) add(before place, hash uint64) (at place) {
	if at = c.vacant; at != 0 {
		c.vacant = c.block(at).below
	} else {
		at = c.fresh()
	}
	head := c.head(hash)
	*c.block(at) = block{hash: hash, pins: 1, before: before, below: *head}
	*head = at
	c.block(before).next = at
	c.known++
	return at
}

// fresh is a place that was not used yet. The lists are kept short.
func (c *Cache) fresh() (at place) {
	at = c.places
	c.places++
	if int(at) == len(c.slabs)*len(slab{}) {
		c.slabs = append(c.slabs, new(slab))
	}
	if int(at) > len(c.heads) {
		c.heads = make([]place, 2*len(c.heads))
		for known := place(1); known < at; known++ { // all of them, as none is vacant
			b := c.block(known)
			head := c.head(b.hash)
			b.below, *head = *head, known
		}
	}
	return at
}

// block is the one at a place.
func (c *Cache) block(at place) *block { return &c.slabs[at/place(len(slab{}))][at%place(len(slab{}))] }

func (c *Cache) pin(at place) {
	b := c.block(at)
	if b.pins == 0 {
		c.block(b.older).newer, c.block(b.newer).older = b.newer, b.older
		c.idle--
	}
	b.pins++
}

func (c *Cache) unpin(at place) {
	b, ends := c.block(at), c.block(0)
	if b.pins--; b.pins == 0 {
		b.older, b.newer = ends.older, 0
		c.block(b.older).newer, ends.older = at, at
		c.idle++
	}
}

func (c *Cache) evict(blocks int) {
	for range blocks {
		at := c.block(0).newer // the oldest
		c.pin(at)
		b := c.block(at)
		link := c.head(b.hash)
		for *link != at {
			link = &c.block(*link).below
		}
		*link = b.below
		b.pins, b.below, c.vacant = gone, c.vacant, at
		c.known--
	}
}
