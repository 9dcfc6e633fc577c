package openai

import (
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// A PromptHasher hashes the prompt of one request in blocks of a fixed size during ScanBody, so no
// byte is read twice.
//
// The first values of a chain of hashes, such as the model, may follow the prompt in the body. So
// each section of the prompt starts a chain of its own during the scan, and Blocks joins the
// sections afterwards.
type PromptHasher struct {
	size         int // of a block, in bytes
	system, text section

	// The section being hashed:
	chain  uint64
	blocks []uint64
	rest   []byte // text not hashed yet, shorter than full
	full   int
}

// A section is a part of the prompt with its own chain of hashes.
type section struct {
	at     Span     // in the body
	blocks []uint64 // chained hashes of the whole blocks
	bytes  int      // length of the text, including the rest after the last whole block
}

const (
	// batchSize is the number of bytes of text collected before hashing. A load of eight bytes just
	// stored one by one stalls, and hashing several blocks in a row is faster. A long string is
	// scanned and hashed in pieces of this size, which are then still in the processor's cache.
	batchSize = 4 << 10
	// maxPooledBlocks is the largest number of hashes for which a pooled hasher keeps memory.
	maxPooledBlocks = 64 << 10
)

// hashers pools the memory of the hashers.
var hashers = sync.Pool{New: func() any { return new(PromptHasher) }}

// NewPromptHasher returns a hasher for blocks of size bytes, at least 1. The caller must call
// Release after use.
func NewPromptHasher(size int) *PromptHasher {
	h := hashers.Get().(*PromptHasher)
	h.size, h.system, h.text = size, section{blocks: h.system.blocks[:0]}, section{blocks: h.text.blocks[:0]}
	return h
}

// Release returns the memory of h to a pool. Release must be called at most once, and h must not be
// used afterwards. The result of Blocks stays valid.
func (h *PromptHasher) Release() {
	if max(cap(h.system.blocks), cap(h.text.blocks)) <= maxPooledBlocks {
		hashers.Put(h)
	}
}

// A sectionKind selects the way in which the value of a section is read.
type sectionKind int

const (
	instructionsSection sectionKind = iota
	messagesSection
	promptSection
)

// hashSection reads the value at the scanner's position and hashes it as a section.
func (h *PromptHasher) hashSection(s *scanner, to *section, kind sectionKind) (err error) {
	start := s.pos
	h.chain, h.rest, h.full = 0, h.rest[:0], max(batchSize, h.size)
	h.blocks = slices.Grow(to.blocks[:0], (len(s.src)-start)/h.size)
	switch kind { // a call of a func value would move the scanner to the heap
	case instructionsSection:
		err = h.hashInstructions(s)
	case messagesSection:
		err = h.hashMessages(s)
	default:
		err = h.hashPrompt(s)
	}
	h.flushBlocks()
	*to = section{Span{start, s.pos}, h.blocks, len(h.blocks)*h.size + len(h.rest)}
	h.blocks = nil
	return err
}

// chainHash returns the hash of a block after the blocks hashed to chain. The function is a
// bijection in each argument, so no block can cancel the effect of earlier ones. block is first
// multiplied by 2^64 divided by the golden ratio (Fibonacci hashing); the mixing is the 64-bit
// finalizer of MurmurHash3 (Austin Appleby, fmix64).
func chainHash(chain, block uint64) uint64 {
	x := chain ^ block*0x9e3779b97f4a7c15
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// appendText appends text to the section. Short pieces are collected; the whole blocks of a long
// one are hashed in place.
func (h *PromptHasher) appendText(p []byte) {
	if len(h.rest)+len(p) < h.full {
		h.rest = append(h.rest, p...)
		return
	}
	if begun := len(h.rest) % h.size; begun > 0 {
		n := min(h.size-begun, len(p))
		h.rest = append(h.rest, p[:n]...)
		p = p[n:]
	}
	h.flushBlocks()
	h.rest = append(h.rest, h.hashBlocks(p)...)
}

func (h *PromptHasher) appendByte(b byte) {
	if h.rest = append(h.rest, b); len(h.rest) >= h.full {
		h.flushBlocks()
	}
}

// padBlock fills up the last block with zeros.
func (h *PromptHasher) padBlock() {
	if begun := len(h.rest) % h.size; begun > 0 {
		h.appendText(make([]byte, h.size-begun))
	}
}

// flushBlocks hashes the whole blocks of the collected text.
func (h *PromptHasher) flushBlocks() { h.rest = h.rest[:copy(h.rest, h.hashBlocks(h.rest))] }

// hashBlocks hashes the whole blocks of p with xxHash64 and returns the rest of p.
func (h *PromptHasher) hashBlocks(p []byte) []byte {
	size, chain, blocks := h.size, h.chain, h.blocks // locals: the loop stores none of them
	for len(p) >= size {
		chain = chainHash(chain, xxhash.Sum64(p[:size]))
		blocks = append(blocks, chain)
		p = p[size:]
	}
	h.chain, h.blocks = chain, blocks
	return p
}
