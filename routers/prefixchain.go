package routers

import "math/bits"

// chain is the chained hashes of a prompt's blocks. As each stands for all blocks before it, not
// every one needs to be kept: its marks are the first 64 blocks, then every 2nd up to 128, every
// 4th up to 256 and so on. So a match is found to 1/32 of its length or better, and a prompt of a
// thousand blocks costs 192 marks.
type chain []uint64

const (
	denseBits = 6 // 1<<denseBits marks are single blocks
	dense     = 1 << denseBits
)

// position is how many blocks the first k marks stand for.
func position(k int) int {
	if k <= dense {
		return k
	}
	octave := (k - dense - 1) / (dense / 2)
	return dense<<octave + (k-dense-octave*dense/2)*(2<<octave)
}

// marks is how many marks the chain has.
func (c chain) marks() int {
	n := len(c)
	if n <= dense {
		return n
	}
	octave := bits.Len(uint(n)) - 1 - denseBits
	return dense + octave*dense/2 + (n-dense<<octave)/(2<<octave)
}

// mark is the hash of the mark at an index.
func (c chain) mark(k int) uint64 { return c[position(k+1)-1] }
