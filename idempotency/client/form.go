package client

import (
	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
)

// Form is the form of a key in its header.
type Form int

// Forms.
const (
	// FormString is a String of RFC 9651, in double quotes, as
	// draft-ietf-httpapi-idempotency-key-header says.
	FormString Form = iota
	// FormBare is the key as it is, for Stripe, Adyen, PayPal and most older servers. Such a key is
	// visible ASCII without commas and does not start with a double quote.
	FormBare
)

// format writes a key, or returns why this form cannot.
func (f Form) format(key string) (string, error) {
	if f == FormBare {
		return protocol.FormatBare(key)
	}
	return protocol.FormatString(key)
}
