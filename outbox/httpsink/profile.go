package httpsink

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/frozen"
)

// Profile says how a remote takes idempotency keys. The functions below return what providers
// document; write your own for other remotes. The zero value sends a bare UUID in Idempotency-Key,
// with the window in Config.KeyWindow.
//
// If you change Header, BodyMember or Form while calls are pending, their next attempts carry a
// different key and the remote applies them again. Let the outbox run empty first.
type Profile struct {
	// Header is the header that carries the key. Defaults to "Idempotency-Key", unless BodyMember
	// is set.
	Header string

	// BodyMember carries the key in the body instead of a header. It names a member that the sink
	// inserts as the first one into the JSON object that is the call's body; the rest stays byte
	// for byte. A call is rejected if its body is not a JSON object or already has the member.
	// Defaults to none.
	BodyMember string

	// Form is how the key's 128 bits are written. Defaults to [FormUUID].
	Form Form

	// MaxLength is the longest key that the remote takes, in bytes. New refuses a longer Form.
	// Defaults to 0: no limit is known.
	MaxLength int

	// Window is how long the remote remembers a key. Defaults to 0: the remote publishes no time,
	// and Config.KeyWindow is required.
	Window time.Duration
}

// Form is how a key is written.
type Form int

// The forms. Each holds the same 128 bits.
const (
	// FormUUID is a UUID: 36 characters, lower-case hexadecimal digits and hyphens.
	FormUUID Form = iota
	// FormString is the UUID as a string of RFC 9651, in double quotes: 38 characters.
	FormString
	// FormHex is 32 lower-case hexadecimal digits.
	FormHex
	// FormBase64URL is 22 letters, digits, - and _ (RFC 4648 section 5, without padding).
	FormBase64URL
)

// keyLength returns the bytes of a key in this form, or 0 for an unknown form.
func (f Form) keyLength() int {
	switch f {
	case FormUUID:
		return 36
	case FormString:
		return 38
	case FormHex:
		return 32
	case FormBase64URL:
		return 22
	}
	return 0
}

// formatKey formats a key, which must be a UUID of 36 characters.
func (f Form) formatKey(key string) (string, error) {
	id, err := uuid.Parse(key)
	if err != nil || id.String() != key {
		return "", errors.New("key: is not a UUID") // the row was written in SQL
	}
	switch f {
	case FormString:
		return `"` + key + `"`, nil // it holds nothing that must be escaped
	case FormHex:
		return hex.EncodeToString(id[:]), nil
	case FormBase64URL:
		return base64.RawURLEncoding.EncodeToString(id[:]), nil
	}
	return key, nil
}

// Standard is draft-ietf-httpapi-idempotency-key-header: Idempotency-Key holds a string of RFC
// 9651. Each remote publishes how long it remembers keys: set Config.KeyWindow.
func Standard() Profile { return Profile{Form: FormString} }

// Stripe is for https://docs.stripe.com/api/idempotent_requests: up to 255 characters, pruned once
// they are at least 24 hours old, no effect on DELETE.
func Stripe() Profile { return Profile{MaxLength: 255, Window: 24 * time.Hour} }

// PayPal is for PayPal-Request-Id (https://developer.paypal.com/api/rest/reference/idempotency).
// The time for which the server stores a key differs by API. Orders v2 stores it for 6 hours, which
// is the window here, and longer on request; Payments v2 stores it for 45 days. Orders v2 takes at
// most 108 characters. Some of PayPal's APIs take no key.
func PayPal() Profile {
	return Profile{Header: "PayPal-Request-Id", MaxLength: 108, Window: 6 * time.Hour}
}

// Square is for https://developer.squareup.com/docs/build-basics/common-api-patterns/idempotency:
// the key is the body's member idempotency_key, at most 45 characters with payments (other APIs
// take more). Square does not publish how long it remembers keys: set Config.KeyWindow to what you
// rely on.
func Square() Profile { return Profile{BodyMember: "idempotency_key", MaxLength: 45} }

// Adyen is for https://docs.adyen.com/development-resources/api-idempotency: at most 64 characters,
// for POST, remembered for at least 7 days (earlier versions of that page said 31). Its regional
// endpoints do not share keys.
func Adyen() Profile { return Profile{MaxLength: 64, Window: 7 * 24 * time.Hour} }

// withDefaults fills in the header and returns every fault.
func (p Profile) withDefaults() (Profile, []error) {
	var faults []error
	if p.Header == "" && p.BodyMember == "" {
		p.Header = "Idempotency-Key"
	}
	switch {
	case p.Header != "" && p.BodyMember != "":
		faults = append(faults, errors.New("Header and BodyMember exclude each other"))
	case p.Header != "" && !frozen.Token(p.Header):
		faults = append(faults, fmt.Errorf("%q is not a header name", p.Header))
	case strings.Trim(p.BodyMember, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") != "":
		faults = append(faults, fmt.Errorf("BodyMember %q must be letters, digits, _ and -", p.BodyMember))
	}
	p.Header = http.CanonicalHeaderKey(p.Header)
	n := p.Form.keyLength()
	switch {
	case n == 0:
		faults = append(faults, fmt.Errorf("Form(%d) is none of the forms", int(p.Form)))
	case p.Form == FormString && p.BodyMember != "":
		faults = append(faults, errors.New("FormString is for headers"))
	case p.MaxLength < 0 || p.MaxLength > 0 && p.MaxLength < n:
		faults = append(faults, fmt.Errorf("keys of %d bytes are longer than MaxLength, %d: choose a shorter Form", n, p.MaxLength))
	}
	if p.Window < 0 {
		faults = append(faults, fmt.Errorf("Window %v must not be negative", p.Window))
	}
	return p, faults
}

// insertKey inserts the key into a body that carries it. The result for a row is the same in each
// attempt.
func (p Profile) insertKey(body []byte, key string) ([]byte, error) {
	if p.BodyMember == "" {
		return body, nil
	}
	members := 0
	dec := json.NewDecoder(bytes.NewReader(body))
	if first, err := dec.Token(); err != nil || first != json.Delim('{') || !json.Valid(body) {
		// The error quotes nothing of the body.
		return nil, fmt.Errorf("body: is no JSON object, which would carry the key as %s", p.BodyMember)
	}
	for ; dec.More(); members++ {
		name, err := dec.Token()
		if err != nil {
			return nil, errors.New("body: is no JSON object")
		}
		// Some servers ignore the case of names. For them two such members would be two keys.
		if s, ok := name.(string); ok && strings.EqualFold(s, p.BodyMember) {
			return nil, fmt.Errorf("body: has a member %s already: the relay sets the key", p.BodyMember)
		}
		var skip json.RawMessage
		if err := dec.Decode(&skip); err != nil {
			return nil, errors.New("body: is no JSON object")
		}
	}
	open := bytes.IndexByte(body, '{') + 1
	out := make([]byte, 0, len(body)+len(p.BodyMember)+len(key)+8)
	out = append(out, body[:open]...)
	out = append(out, fmt.Sprintf("%q:%q", p.BodyMember, key)...)
	if members > 0 {
		out = append(out, ',')
	}
	return append(out, body[open:]...), nil
}
