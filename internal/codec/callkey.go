package codec

// kindCall names version 1 of the identity of outbound calls inside the hash.
const kindCall = "onlyonce/call/1"

// Call is the key of an outbound call, of the fields of its origin, its sink, name and id: package
// outbox says which these are. The first 128 bits become a UUIDv8 (RFC 9562 section 5.8).
func Call(fields ...string) [16]byte {
	sum := Hash(kindCall, fields...)
	return UUIDv8([16]byte(sum[:16]))
}
