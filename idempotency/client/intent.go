package client

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/onlyonce/onlyonce/internal/codec"
)

// Intent is what somebody wants done once, told by what does not change when it is tried again: after a crash, on another
// machine, by another version of the program.
type Intent struct {
	// Name says what is to be done, and for whom it is told apart: "checkout/charge". Required.
	Name string

	// Version counts how often it is wanted on purpose, from 1. Required. A final refusal is an answer like any other (H13): a
	// charge that was declined is declined again under its key, byte for byte. Who wants to try another time, after the
	// customer has topped up his account, say, asks with the next version. Store it with the thing that the intent is about,
	// before the request; a version that is counted while sending is no longer the same after a crash.
	Version int

	// Parts say which one: the order, the line. At least one, none empty: an empty part is mostly an id that is not known yet,
	// and all operations without it would be one. Nothing that differs when it is tried again (times, counters, random values),
	// and nothing that is to be noticed when it differs, such as the amount: that belongs into the body alone, where a server
	// answers 422 and does not charge twice.
	Parts []string
}

// kindIntent names version 1 of the codec inside the hash.
const kindIntent = "onlyonce/intent/1"

// Derive makes the key of an intent: the same whenever and wherever it is asked for, and another one for every other intent.
// A client that derives its keys needs to remember none.
//
//	SHA-256 over the length-prefixed fields
//	  "onlyonce/intent/1", Name, Version in decimal, each of Parts
//	each preceded by its length in bytes as a big-endian uint32
//
// The first 128 bits become a UUIDv8 (RFC 9562 section 5.8), as the keys of package outbox do. Not a UUIDv5: parts often come from
// outside, and for SHA-1 two of them can be found that have one key. testdata/intents.json holds test vectors for other languages.
//
// Whoever knows an intent can compute its key. A server keeps keys apart by who asks (H2), so that this gives no access.
func Derive(intent Intent) (string, error) {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: Intent.%s: %s", ErrKey, field, fmt.Sprintf(format, args...)))
	}
	if intent.Name == "" {
		fault("Name", "must not be empty: say what is to be done")
	}
	if intent.Version < 1 {
		fault("Version", "%d is less than 1, the version of what is wanted for the first time", intent.Version)
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
