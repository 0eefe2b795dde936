package webhook

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/url"
	"strings"
)

// maxChallenge is the longest text, in bytes, that a handshake's answer repeats.
const maxChallenge = 1024

// Challenge returns a parameter of a handshake's query, which the answer repeats. It must occur
// exactly once: 1 to 1024 printable ASCII characters without < > & " and '. A handshake is not
// signed, so that anyone can choose this text: it must not become markup or a script under the
// endpoint's name, even if a proxy changes the answer's content type.
func Challenge(query url.Values, name string) (string, error) {
	switch all := query[name]; {
	case len(all) == 0 || all[0] == "":
		return "", Malformed(name, "is missing")
	case len(all) > 1:
		return "", Malformed(name, "occurs more than once")
	case len(all[0]) > maxChallenge:
		return "", Malformed(name, "is longer than 1024 bytes")
	case !isPrintable(all[0]) || strings.ContainsAny(all[0], `<>&"'`):
		return "", Malformed(name, "has characters that are not printable ASCII, or that HTML gives a meaning")
	default:
		return all[0], nil
	}
}

// sameSecret compares a secret with one that was received. The comparison takes constant time, also
// for values of different lengths.
func sameSecret(mine, received string) bool {
	a, b := sha256.Sum256([]byte(mine)), sha256.Sum256([]byte(received))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// contentID returns an event's id for a sender that gives events none: a hash of what is signed. So
// each delivery of the same bytes is one event, and the id is as authentic as they are.
func contentID(signed []byte) string {
	sum := sha256.Sum256(signed)
	return "sha256:" + hex.EncodeToString(sum[:])
}
