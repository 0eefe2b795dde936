package client

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/onlyonce/onlyonce/internal/codec"
)

// Intent describes an operation that a client wants done once. It contains only values that stay
// the same if the client tries again after a crash, on another machine, or with another version of
// the program.
type Intent struct {
	// Name is the kind of operation, for example "checkout/charge". Use different names for
	// different purposes. Required.
	Name string

	// Version counts deliberate repetitions of the operation, from 1. A final refusal is an answer
	// like any other (H13): a declined charge is declined again under its key, byte for byte. To
	// try once more, for example after the customer has topped up the account, use the next
	// version. Store the version with the intent's object before you send the request: a version
	// that is counted while sending differs after a crash. Required.
	Version int

	// Parts identify the operation among those of its name, for example the order's id and the
	// line. At least one is required, and each must be non-empty: an empty part is usually an id
	// that is not known yet, and all operations without it would be one.
	//
	// Leave out values that differ when the client tries again: times, counters, random values.
	// Also leave out values that must not differ, for example the amount. They belong in the body
	// only: if the amount differs, the server answers 422 instead of charging twice.
	Parts []string
}

// kindIntent is hashed first, and names version 1 of the encoding.
const kindIntent = "onlyonce/intent/1"

// Derive returns the key of an intent. Equal intents have the same key on every machine and at any
// time, and different intents have different keys. So a client that derives its keys does not need
// to store them.
//
//	SHA-256 over the length-prefixed fields
//	  "onlyonce/intent/1", Name, Version in decimal, each of Parts
//	each preceded by its length in bytes as a big-endian uint32
//
// The first 128 bits become a UUIDv8 (RFC 9562 section 5.8), like the keys of package outbox. It is
// not a UUIDv5, because parts often come from outside: with SHA-1 an attacker can find two intents
// with one key. testdata/intents.json holds test vectors for other languages.
//
// Anyone who knows an intent can compute its key. That gives no access, because a server separates
// the keys of different clients (H2).
//
// If the intent is wrong, the error lists every fault and wraps [ErrKey].
func Derive(intent Intent) (string, error) {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: Intent.%s: %s", ErrKey, field, fmt.Sprintf(format, args...)))
	}
	if intent.Name == "" {
		fault("Name", "must not be empty: it names the kind of operation")
	}
	if intent.Version < 1 {
		fault("Version", "is %d: must be at least 1", intent.Version)
	}
	if len(intent.Parts) == 0 {
		fault("Parts", "must not be empty: without one, all operations of this name are one")
	}
	for i, part := range intent.Parts {
		if part == "" {
			fault(fmt.Sprintf("Parts[%d]", i), "must not be empty: an id that is not known yet would merge operations")
		}
	}
	if err := errors.Join(faults...); err != nil {
		return "", err
	}
	sum := codec.Hash(kindIntent, append([]string{intent.Name, strconv.Itoa(intent.Version)}, intent.Parts...)...)
	return codec.UUIDv8([16]byte(sum[:16])).String(), nil
}
