package routers

import (
	"cmp"
	"iter"
	"slices"
	"strconv"

	"github.com/spaolacci/murmur3"
)

// ringSeed is Ray Serve's. Another seed would move every session.
const ringSeed = 0xF9B4CA77

// ringHash returns the position of a key on the ring: the low 64 bits of MurmurHash3 x64-128.
func ringHash(key []byte) uint64 { return murmur3.Sum64WithSeed(key, ringSeed) }

// ring is a consistent hash ring, bit-compatible with Ray Serve's: each ID has virtual points at
// the hashes of "<id>:<i>", and a key belongs to the first point with a hash greater than the
// key's. A ring is immutable. Source: Karger et al., "Consistent Hashing and Random Trees", 1997.
type ring struct {
	ids     []string // sorted
	virtual int      // points of each ID
	points  []point  // by hash
}

type point struct {
	hash  uint64
	owner int32 // index in ids
}

// newRing returns the ring of sorted IDs.
func newRing(ids []string, virtual int) *ring {
	r := &ring{ids: ids, virtual: virtual, points: make([]point, 0, len(ids)*virtual)}
	var key []byte
	for owner, id := range ids {
		for i := range virtual {
			key = append(append(key[:0], id...), ':')
			key = strconv.AppendInt(key, int64(i), 10)
			r.points = append(r.points, point{ringHash(key), int32(owner)})
		}
	}
	slices.SortFunc(r.points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.owner, b.owner))
	})
	return r
}

// clockwise yields the owners in order from hash, as indices of ids, each once.
func (r *ring) clockwise(hash uint64) iter.Seq[int] {
	return func(yield func(int) bool) {
		start, _ := slices.BinarySearchFunc(r.points, hash, func(p point, hash uint64) int {
			if p.hash > hash {
				return 1
			}
			return -1
		})
		seen := make([]uint64, len(r.ids)/64+1) // one bit per owner
		for i, met := start, 0; met < len(r.ids); i++ {
			owner := int(r.points[i%len(r.points)].owner)
			if bit := uint64(1) << (owner % 64); seen[owner/64]&bit == 0 {
				seen[owner/64] |= bit
				met++
				if !yield(owner) {
					return
				}
			}
		}
	}
}
