// Package codec holds the one way in which onlyonce hashes tuples of fields into identities.
package codec

import (
	"crypto/sha256"
	"encoding/binary"
)

// Hash is SHA-256 over the fields, each preceded by its length in bytes as a big-endian uint32, so that no two
// different lists of fields feed it the same bytes. The first field names the kind and version of the tuple
// ("onlyonce/key/1"), so that a tuple of one kind never equals one of another.
func Hash(kind string, fields ...string) [32]byte {
	h := sha256.New()
	write(h.Write, kind)
	for _, f := range fields {
		write(h.Write, f)
	}
	return [32]byte(h.Sum(nil))
}

func write(w func([]byte) (int, error), field string) {
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(field)))
	_, _ = w(n[:]) // a hash never fails
	_, _ = w([]byte(field))
}
