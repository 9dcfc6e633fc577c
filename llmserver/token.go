package llmserver

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/google/uuid"
)

// A Token names a reserved slot. The caller mints the token before the reservation, so that a
// reservation with a lost reply can still be cancelled by name.
type Token = uuid.UUID

// NewUUID returns a random UUID (version 4), for tokens and request IDs. The runtime's generator
// (ChaCha8, seeded by the system) keeps a state per thread, so NewUUID takes no lock and allocates
// nothing. It may be called from any goroutine.
func NewUUID() (t uuid.UUID) {
	binary.NativeEndian.PutUint64(t[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(t[8:], rand.Uint64())
	t[6], t[8] = t[6]&0x0f|0x40, t[8]&0x3f|0x80 // version 4, variant of RFC 9562
	return t
}
