package ingress

import (
	"encoding/binary"
	"math/bits"
)

// plainEnd returns the index, from i on, of the first byte that is not a plain string character: a quote, a backslash
// or a control character; len(src) if there is none.
func plainEnd(src []byte, i int) int {
	for near := i + 64; i < near && i+16 <= len(src); i += 16 { // less is not worth the call
		pair := src[i : i+16]
		a, b := stops(binary.LittleEndian.Uint64(pair)), stops(binary.LittleEndian.Uint64(pair[8:]))
		switch {
		case a != 0:
			return i + bits.TrailingZeros64(a)/8
		case b != 0:
			return i + 8 + bits.TrailingZeros64(b)/8
		}
	}
	if i+16 <= len(src) {
		i += plainRun(src[i:])
	}
	for ; i+8 <= len(src); i += 8 {
		if a := stops(binary.LittleEndian.Uint64(src[i:])); a != 0 {
			return i + bits.TrailingZeros64(a)/8
		}
	}
	for i < len(src) && src[i] != '"' && src[i] != '\\' && src[i] >= ' ' {
		i++
	}
	return i
}

// plainWords is plainRun where there is no faster one: it looks at sixteen bytes at a time.
func plainWords(p []byte) int {
	i := 0
	for ; i+16 <= len(p); i += 16 {
		pair := p[i : i+16]
		if stops(binary.LittleEndian.Uint64(pair))|stops(binary.LittleEndian.Uint64(pair[8:])) != 0 {
			break
		}
	}
	return i
}

// stops has the high bit of the first byte of w set that is a quote, a backslash or a control character, and no bit below it.
//
// (x - n·ones) &^ x has the high bit of every byte of x set that is below n, where n is at most 0x80; a borrow can set others,
// but only above a true one. Control characters are below 0x20, and with the second bit turned over they still are, a
// quote, 0x22, is 0x20, and nothing else is below 0x21: so one test finds both.
func stops(w uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	turned, backslash := w^2*ones, w^'\\'*ones
	return ((turned-0x21*ones)&^turned | (backslash-ones)&^backslash) & highs
}
