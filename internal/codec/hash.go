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
	var onStack [256]byte // on the stack: what a key needs
	b := onStack[:0]
	size := lengthSize + len(kind)
	for _, f := range fields {
		size += lengthSize + len(f)
	}
	if size > len(onStack) {
		b = make([]byte, 0, size)
	}
	b = appendField(b, kind)
	for _, f := range fields {
		b = appendField(b, f)
	}
	return sha256.Sum256(b)
}

// lengthSize is the size of a field's length.
const lengthSize = 4

func appendField(b []byte, field string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(field)))
	return append(b, field...)
}
