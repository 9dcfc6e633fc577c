package openai

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

func TestIndexSpecialFindsEverySpecialByteAtEveryOffset(t *testing.T) {
	special := func(b byte) bool { return b < ' ' || b == '"' || b == '\\' }
	for b := range 256 {
		for n := range 150 {
			src := bytes.Repeat([]byte{'x'}, 150)
			src[n] = byte(b)
			want := len(src)
			if special(byte(b)) {
				want = n
			}
			if got := indexSpecial(src, 0); got != want {
				t.Fatalf("byte %#x at %d: %d", b, n, got)
			}
			for name, run := range map[string]func([]byte) int{"skipPlain": skipPlain, "skipPlainGeneric": skipPlainGeneric} {
				if got := run(src); got > want || got < want-15 {
					t.Fatalf("%s, byte %#x at %d: %d", name, b, n, got)
				}
			}
		}
	}
}

func TestIndexSpecialReadsNoByteOutsideItsRange(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		src := make([]byte, random.IntN(200))
		for i := range src {
			src[i] = byte(random.Uint32()) | 0x80 // plain, and the worst case for borrows
			if random.IntN(100) == 0 {
				src[i] = "\"\\\n\x1f "[random.IntN(5)]
			}
		}
		start := random.IntN(len(src) + 1)
		end := start + random.IntN(len(src)-start+1)
		want := start
		for want < end && src[want] >= ' ' && src[want] != '"' && src[want] != '\\' {
			want++
		}
		if got := indexSpecial(src[:end], start); got != want {
			t.Fatalf("%q from %d: %d, want %d", src[:end], start, got, want)
		}
	}
}
