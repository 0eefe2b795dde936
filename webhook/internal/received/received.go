// Package received reads what senders of webhooks have sent, within bounds: texts, times, queries
// and members of JSON. Package webhook, its schemes and their certificates use it.
package received

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

const (
	// MaxSignatures is the most signatures of a request, including those of unknown versions.
	MaxSignatures = 16
	// MaxField is the most bytes of a header that is read or kept. For example 16 signatures
	// of Ed25519 take 1,487 bytes.
	MaxField = 4 << 10
	// MinSecret is the shortest secret, in characters: shorter ones can be found by trial.
	MinSecret = 16
)

// Printable reports whether s is printable ASCII.
func Printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// ValidID reports whether s can be an event's id: 1 to 255 visible ASCII characters.
func ValidID(s string) bool {
	return len(s) >= 1 && len(s) <= 255 && Printable(s) && strings.IndexByte(s, ' ') < 0
}

// UnixTime parses a decimal number in its only form: no sign, no leading zero, at most 11 digits of
// seconds (the year 5138).
func UnixTime(field, s string, unit time.Duration) (time.Time, error) {
	digits := 11
	if unit == time.Millisecond {
		digits = 14
	}
	n, err := strconv.ParseInt(s, 10, 64)
	exact := n >= 0 && s == strconv.FormatInt(n, 10) // no sign, and no 0 in front
	if err != nil || len(s) > digits || !exact {
		return time.Time{}, Malformed(field, "is not a time in decimal digits")
	}
	if unit == time.Millisecond {
		return time.UnixMilli(n), nil
	}
	return time.Unix(n, 0), nil
}

// ParseQuery parses a query of bounded length.
func ParseQuery(query string) (url.Values, error) {
	if len(query) > MaxField {
		return nil, Malformed("query", "is longer than 4096 bytes")
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, Malformed("query", "cannot be parsed")
	}
	return values, nil
}

// SameSecret compares a secret with one that was received. The comparison takes constant time, also
// for values of different lengths.
func SameSecret(mine, received string) bool {
	a := sha256.Sum256([]byte(mine))
	b := sha256.Sum256([]byte(received))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// ContentID returns an event's id for a sender that gives events none: a hash of what is signed. So
// each delivery of the same bytes is one event, and the id is as authentic as they are.
func ContentID(signed []byte) string {
	sum := sha256.Sum256(signed)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// DeliveryID returns an id for one delivery of a sender that gives events none, if two events can
// have the same bytes.
func DeliveryID() string { return "delivery:" + uuid.NewString() }
