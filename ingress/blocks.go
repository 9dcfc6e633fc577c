package ingress

import (
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// A promptHasher hashes the prompt of a request while the scanner reads it, see member, so that nothing is looked at twice. As
// what the hashes are to begin with may come behind the prompt, as the model's name often does, it chains those of each section
// by themselves; promptBlocks puts them together in the end.
type promptHasher struct {
	size         int // of a block
	system, text section

	// Of the section under way:
	chain  uint64
	blocks []uint64
	rest   []byte // what is not hashed yet, up to full bytes
	full   int
}

// section is a part of the prompt, hashed from its own start.
type section struct {
	at     span     // where it lies in the body
	blocks []uint64 // chained hashes
	bytes  int      // of its text, with what is left behind the last whole block
}

const (
	// gathered is how much text comes together before it is hashed: bytes that were stored one by one cannot be read eight
	// at a time at once, and many blocks at a time go faster. So much of a long string is looked at and then hashed, too,
	// while it is near.
	gathered = 4 << 10
	// keptBlocks is how many hashes a hasher that nobody uses may hold on to.
	keptBlocks = 64 << 10
)

// hashers are kept for their memory.
var hashers = sync.Pool{New: func() any { return new(promptHasher) }}

// newPromptHasher returns a hasher for blocks of size > 0 bytes, to be given back with done.
func newPromptHasher(size int) *promptHasher {
	h := hashers.Get().(*promptHasher)
	h.size, h.system, h.text = size, section{blocks: h.system.blocks[:0]}, section{blocks: h.text.blocks[:0]}
	return h
}

func (h *promptHasher) done() {
	if max(cap(h.system.blocks), cap(h.text.blocks)) <= keptBlocks {
		hashers.Put(h)
	}
}

// part is what a value is of the prompt.
type part int

const (
	instructions part = iota
	messages
	prompt
)

// read hashes the value that the scanner is at as a section.
func (h *promptHasher) read(s *scanner, to *section, of part) (err error) {
	start := s.pos
	h.chain, h.rest, h.full = 0, h.rest[:0], max(gathered, h.size)
	h.blocks = slices.Grow(to.blocks[:0], (len(s.src)-start)/h.size)
	switch of { // not by a func value, for which the scanner would have to be on the heap
	case instructions:
		err = h.instructions(s)
	case messages:
		err = h.messages(s)
	default:
		err = h.prompt(s)
	}
	h.flush()
	*to = section{span{start, s.pos}, h.blocks, len(h.blocks)*h.size + len(h.rest)}
	h.blocks = nil
	return err
}

// link is the hash of a block behind the one whose hash is chain. Of each of both every other value gives another result, so
// that no block can make forgotten what came before it; the rest is the finish of MurmurHash3.
func link(chain, block uint64) uint64 {
	x := chain ^ block*0x9e3779b97f4a7c15
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// add adds text. Short pieces are gathered; of a long one whole blocks are hashed where they lie.
func (h *promptHasher) add(p []byte) {
	if len(h.rest)+len(p) < h.full {
		h.rest = append(h.rest, p...)
		return
	}
	if begun := len(h.rest) % h.size; begun > 0 {
		n := min(h.size-begun, len(p))
		h.rest = append(h.rest, p[:n]...)
		p = p[n:]
	}
	h.flush()
	h.rest = append(h.rest, h.whole(p)...)
}

func (h *promptHasher) addByte(b byte) {
	if h.rest = append(h.rest, b); len(h.rest) >= h.full {
		h.flush()
	}
}

// pad fills up the last block.
func (h *promptHasher) pad() {
	if begun := len(h.rest) % h.size; begun > 0 {
		h.add(make([]byte, h.size-begun))
	}
}

// flush hashes the whole blocks of what was gathered.
func (h *promptHasher) flush() { h.rest = h.rest[:copy(h.rest, h.whole(h.rest))] }

// whole hashes the whole blocks of p, and returns what is behind them.
func (h *promptHasher) whole(p []byte) []byte {
	size, chain, blocks := h.size, h.chain, h.blocks // not stored once per block
	for len(p) >= size {
		chain = link(chain, xxhash.Sum64(p[:size]))
		blocks = append(blocks, chain)
		p = p[size:]
	}
	h.chain, h.blocks = chain, blocks
	return p
}
