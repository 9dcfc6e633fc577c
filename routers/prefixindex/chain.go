package prefixindex

import "math/bits"

// chain is the sequence of chained block hashes of a prompt. Each hash stands for all blocks up to
// and including one, so the index stores only some of them, the checkpoints: the first 64 blocks,
// then every 2nd up to block 128, every 4th up to 256 and so on. A match is exact to 1/32 of its
// length.
type chain []uint64

const (
	denseBits   = 6
	denseBlocks = 1 << denseBits // up to here every block is a checkpoint
)

// blockCount returns the number of blocks covered by the first k checkpoints of a chain.
func blockCount(k int) int {
	if k <= denseBlocks {
		return k
	}
	octave := (k - denseBlocks - 1) / (denseBlocks / 2)
	return denseBlocks<<octave + (k-denseBlocks-octave*denseBlocks/2)*(2<<octave)
}

// checkpoints returns the number of checkpoints of the chain.
func (c chain) checkpoints() int {
	n := len(c)
	if n <= denseBlocks {
		return n
	}
	octave := bits.Len(uint(n)) - 1 - denseBits
	return denseBlocks + octave*denseBlocks/2 + (n-denseBlocks<<octave)/(2<<octave)
}

// checkpoint returns the hash of the checkpoint at index k.
func (c chain) checkpoint(k int) uint64 { return c[blockCount(k+1)-1] }

// cut returns the chain up to its first k checkpoints.
func (c chain) cut(k int) chain { return c[:blockCount(k)] }
