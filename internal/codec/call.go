package codec

// kindCall names version 1 of the identity of outbound calls inside the hash.
const kindCall = "onlyonce/call/1"

// Call is the key of an outbound call, of the fields of its origin, its sink, name and id: package outbox says which these are. The first 128
// bits become a UUIDv8 (RFC 9562 section 5.8).
func Call(fields ...string) (key [16]byte) {
	sum := Hash(kindCall, fields...)
	copy(key[:], sum[:16])
	key[6] = key[6]&0x0f | 0x80 // version 8
	key[8] = key[8]&0x3f | 0x80 // variant of RFC 9562
	return key
}
