package scheme

import (
	"net/url"
	"strings"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
)

// maxChallenge is the longest text, in bytes, that a handshake's answer repeats.
const maxChallenge = 1024

// Challenge returns a parameter of a handshake's query, which the answer repeats. It must occur
// exactly once: 1 to 1024 printable ASCII characters without < > & " and '. A handshake is not
// signed, so anyone can choose this text: it must not become markup or a script under the
// endpoint's name, even if a proxy changes the answer's content type.
func Challenge(query url.Values, name string) (string, error) {
	switch all := query[name]; {
	case len(all) == 0 || all[0] == "":
		return "", Malformed(name, "is missing")
	case len(all) > 1:
		return "", Malformed(name, "occurs more than once")
	case len(all[0]) > maxChallenge:
		return "", Malformed(name, "is longer than 1024 bytes")
	case !received.Printable(all[0]) || strings.ContainsAny(all[0], `<>&"'`):
		return "", Malformed(name, "has characters that are not printable ASCII, or that HTML gives a meaning")
	default:
		return all[0], nil
	}
}

// Malformed makes an error for a [Scheme] to return, for an invalid header or member. The reason
// must be a constant: it must not quote the request.
func Malformed(field, reason string) error { return received.Malformed(field, reason) }
