package telemetry

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
)

// A pseudonymizer replaces hashes by keyed ones. Without the key, a reader of the log cannot verify
// a guessed prompt; with the same key, equal texts stay equal in every log. It is safe for
// concurrent use.
type pseudonymizer struct {
	cipher cipher.Block
	secret [sha256.Size]byte
}

func newPseudonymizer(key []byte) *pseudonymizer {
	p := &pseudonymizer{secret: sha256.Sum256(key)}
	var err error
	if p.cipher, err = aes.NewCipher(p.secret[:]); err != nil {
		panic("BUG: " + err.Error())
	}
	return p
}

// blocks returns the first halves of the hashes' cipher texts, which are indistinguishable from
// random numbers without the key.
func (p *pseudonymizer) blocks(plain []uint64) blockHashes {
	keyed, block := make(blockHashes, len(plain)), make([]byte, aes.BlockSize)
	for i, hash := range plain {
		binary.BigEndian.PutUint64(block, hash)
		clear(block[8:])
		p.cipher.Encrypt(block, block)
		keyed[i] = binary.BigEndian.Uint64(block)
	}
	return keyed
}

// session returns the keyed hash of a session ID; "" for "". The same ID with another adapter is
// another session.
func (p *pseudonymizer) session(adapter, id string) string {
	if id == "" {
		return ""
	}
	mac := hmac.New(sha256.New, p.secret[:])
	if adapter != "" {
		io.WriteString(mac, adapter+"\x00")
	}
	io.WriteString(mac, id)
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

// blockHashes are marshaled as 16 hexadecimal digits each: JSON numbers would lose precision.
type blockHashes []uint64

func (h blockHashes) MarshalJSON() ([]byte, error) {
	text, digits := append(make([]byte, 0, 2+19*len(h)), '['), make([]byte, 8)
	for i, hash := range h {
		if i > 0 {
			text = append(text, ',')
		}
		binary.BigEndian.PutUint64(digits, hash)
		text = append(hex.AppendEncode(append(text, '"'), digits), '"')
	}
	return append(text, ']'), nil
}
