// Package codec holds the one way in which onlyonce hashes tuples of fields into identities, and
// the forms in which values are stored.
package codec

import (
	"crypto/sha256"
	"encoding/binary"
)

// Hash is SHA-256 over the fields, each preceded by its length in bytes as a big-endian uint32, so
// that no two different lists of fields feed it the same bytes. The first field names the kind and
// version of the tuple ("onlyonce/key/1"), so that a tuple of one kind never equals one of another.
func Hash(kind string, fields ...string) [32]byte {
	var few [256]byte // on the stack: what a key needs
	b := few[:0]
	size := prefix + len(kind)
	for _, f := range fields {
		size += prefix + len(f)
	}
	if size > len(few) {
		b = make([]byte, 0, size)
	}
	b = write(b, kind)
	for _, f := range fields {
		b = write(b, f)
	}
	return sha256.Sum256(b)
}

// prefix is the size of a field's length.
const prefix = 4

func write(b []byte, field string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(field)))
	return append(b, field...)
}
