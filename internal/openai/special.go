package openai

import (
	"encoding/binary"
	"math/bits"
)

// indexSpecial returns the index of the first special character of src, from i on: a quote, a
// backslash or a control character. It returns len(src) if there is none.
func indexSpecial(src []byte, i int) int {
	for near := i + 64; i < near && i+16 <= len(src); i += 16 { // a shorter run is not worth the call
		pair := src[i : i+16]
		a, b := specialMask(binary.LittleEndian.Uint64(pair)), specialMask(binary.LittleEndian.Uint64(pair[8:]))
		switch {
		case a != 0:
			return i + bits.TrailingZeros64(a)/8
		case b != 0:
			return i + 8 + bits.TrailingZeros64(b)/8
		}
	}
	if i+16 <= len(src) {
		i += skipPlain(src[i:])
	}
	for ; i+8 <= len(src); i += 8 {
		if a := specialMask(binary.LittleEndian.Uint64(src[i:])); a != 0 {
			return i + bits.TrailingZeros64(a)/8
		}
	}
	for i < len(src) && src[i] != '"' && src[i] != '\\' && src[i] >= ' ' {
		i++
	}
	return i
}

// skipPlainGeneric is skipPlain for architectures without assembly. It reads 16 bytes at a time.
func skipPlainGeneric(p []byte) int {
	i := 0
	for ; i+16 <= len(p); i += 16 {
		pair := p[i : i+16]
		if specialMask(binary.LittleEndian.Uint64(pair))|specialMask(binary.LittleEndian.Uint64(pair[8:])) != 0 {
			break
		}
	}
	return i
}

// specialMask returns a word with its lowest set bit at the high bit of the first special character
// in w: a quote, a backslash or a control character; 0 if there is none. Higher bits mean nothing.
//
// (x - n*ones) &^ x sets the high bit of every byte of x below n, for n up to 0x80. A borrow can
// set further bits, but only above a correct one. Flipping the second bit of each byte leaves
// control characters below 0x20, turns the quote from 0x22 into 0x20 and moves no other byte below
// 0x21, so one comparison with 0x21 finds both.
func specialMask(w uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	flipped, backslash := w^2*ones, w^'\\'*ones
	return ((flipped-0x21*ones)&^flipped | (backslash-ones)&^backslash) & highs
}
