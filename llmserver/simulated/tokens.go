package simulated

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// blockTokens is the block size of the engine's KV cache.
const blockTokens = 16

// A token is up to four bytes of text, as a little-endian number. Each piece of text (a message, a
// role marker) begins a new token, so a growing conversation keeps its tokens.
type token = uint32

func tokenize(tokens []token, text string) []token {
	for len(text) >= 4 {
		tokens = append(tokens, token(text[0])|token(text[1])<<8|token(text[2])<<16|token(text[3])<<24)
		text = text[4:]
	}
	if len(text) > 0 {
		var last [4]byte
		copy(last[:], text)
		tokens = append(tokens, binary.LittleEndian.Uint32(last[:]))
	}
	return tokens
}

// hashChain hashes the whole blocks of the tokens, each together with all previous blocks.
func hashChain(tokens []token) []uint64 {
	chain := make([]uint64, len(tokens)/blockTokens)
	parent := uint64(0)
	for i := range chain {
		parent = hashTokens(parent, tokens[i*blockTokens:(i+1)*blockTokens])
		chain[i] = parent
	}
	return chain
}

// hashTokens hashes at most one block of tokens together with the hash of all previous blocks.
func hashTokens(parent uint64, tokens []token) uint64 {
	buffer := make([]byte, 0, 8+4*blockTokens)
	buffer = binary.LittleEndian.AppendUint64(buffer, parent)
	for _, t := range tokens {
		buffer = binary.LittleEndian.AppendUint32(buffer, t)
	}
	return xxhash.Sum64(buffer)
}

// words is the vocabulary of responses. With a leading space, each word is exactly one token.
var words = [...]string{
	" air", " all", " and", " ant", " any", " ape", " arm", " art", " ash", " bay", " bee", " big", " boy", " bus", " but", " can",
	" cat", " cow", " cup", " day", " dog", " dry", " ear", " egg", " elm", " eye", " far", " few", " fig", " fir", " fly", " fog",
	" for", " fox", " fur", " gem", " her", " hen", " hot", " ice", " ink", " ivy", " jam", " jar", " joy", " key", " kid", " law",
	" lay", " leg", " let", " low", " man", " map", " may", " new", " nor", " not", " now", " nut", " oak", " off", " oil", " old",
	" one", " our", " owl", " own", " pan", " pea", " pen", " pie", " put", " ran", " raw", " red", " rib", " row", " rye", " sad",
	" saw", " sea", " see", " set", " she", " shy", " six", " sky", " son", " sow", " sun", " tea", " ten", " the", " tie", " tin",
	" toe", " top", " toy", " two", " use", " van", " vow", " was", " way", " web", " wet", " who", " why", " win", " wit", " yes",
}

// word returns the k-th token of the choice with the given seed.
func word(seed uint64, k int) string {
	return words[mix(seed+uint64(k))%uint64(len(words))]
}

// mix is the finalizer of splitmix64: similar inputs give unrelated outputs.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
