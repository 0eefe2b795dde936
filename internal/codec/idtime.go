package codec

import (
	"encoding/binary"
	"strings"
	"time"

	"github.com/google/uuid"
)

// IDTime returns the time that an id contains, in milliseconds: that of a UUIDv7 in its canonical
// form of 36 characters, or of a ULID of 26, in either case. ok is false for any other id.
func IDTime(id string) (t time.Time, ok bool) {
	six, ok := IDMillis(id)
	if !ok {
		return time.Time{}, false
	}
	var ms [8]byte
	copy(ms[2:], six[:])
	return time.UnixMilli(int64(binary.BigEndian.Uint64(ms[:]))).UTC(), true //nolint:gosec // 48 bits
}

// IDMillis returns the 48 bits of Unix milliseconds that a UUIDv7 (RFC 9562 section 5.7) or a ULID
// starts with.
func IDMillis(id string) (ms [6]byte, ok bool) {
	switch len(id) {
	case 36:
		if id[14] != '7' { // the version: most ids of this length are random
			return ms, false
		}
		u, err := uuid.Parse(id)
		if err != nil || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
			return ms, false
		}
		copy(ms[:], u[:6])
		return ms, true
	case 26:
		return ulIDMillis(id)
	}
	return ms, false
}

// crockford is the ULID alphabet: Crockford's base 32, without I, L, O and U.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

func ulIDMillis(id string) (ms [6]byte, ok bool) {
	if id[0] > '7' { // 128 bits in 26 characters of 5 bits: the first has 3
		return ms, false
	}
	var t uint64
	for i := range len(id) {
		c := id[i]
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		v := strings.IndexByte(crockford, c)
		if v < 0 {
			return ms, false
		}
		if i < 10 {
			t = t<<5 | uint64(v)
		}
	}
	var eight [8]byte
	binary.BigEndian.PutUint64(eight[:], t)
	copy(ms[:], eight[2:])
	return ms, true
}
