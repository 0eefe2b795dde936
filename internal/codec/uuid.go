package codec

import "github.com/google/uuid"

// UUIDv8 is the first 16 bytes of a hash as a UUID of version 8 (RFC 9562 section 5.8), for those
// who take nothing but a UUID: the version and variant bits are set, the other 122 are the hash's.
// Keys that are derived from it leave this program: what it returns never changes.
func UUIDv8(hash [16]byte) uuid.UUID {
	hash[6] = hash[6]&0x0f | 0x80 // version 8
	hash[8] = hash[8]&0x3f | 0x80 // variant of RFC 9562
	return hash
}
