package parked

import (
	"strconv"

	"github.com/onlyonce/onlyonce/internal/codec"
)

// NewKey is the key of a call that a remote, for which its own key is used up, is to take for another one. It derives from the old key
// and from how often the row was redriven before, so that doing it again (after a restore that lost it) makes the same key. A
// UUIDv8, as the keys of calls are.
func NewKey(old string, redrives int64) string {
	sum := codec.Hash("onlyonce/redrive/1", old, "redrive", strconv.FormatInt(redrives, 10))
	return codec.UUIDv8([16]byte(sum[:16])).String()
}
