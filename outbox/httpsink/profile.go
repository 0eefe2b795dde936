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

// Profile is how a remote takes idempotency keys. Those below hold what providers say about themselves; write your own
// for others. The zero value is a bare UUID in Idempotency-Key, with a window that Config.KeyWindow names.
//
// Changing Header, BodyMember or Form of a sink that has calls pending makes their next attempts carry another key, which
// a remote takes for another call: let the outbox run empty first.
type Profile struct {
	// Header carries the key. Default "Idempotency-Key", unless BodyMember is set.
	Header string

	// BodyMember carries the key instead of a header: the name of a member that is added, as the first one, to the JSON object
	// that is the call's body; the rest stays byte for byte. A call whose body is no JSON object, or has the member
	// already, is rejected.
	BodyMember string

	// Form is how the key's 128 bits are written.
	Form Form

	// MaxLength is the longest key that the remote takes, in bytes; New refuses a longer Form. 0: none is known.
	MaxLength int

	// Window is how long the remote remembers a key. 0: it does not say, and Config.KeyWindow must.
	Window time.Duration
}

// Form is how a key is written.
type Form int

// Forms. They hold the same 128 bits.
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

// length is how many bytes a key of a form has; 0 for none of the forms.
func (f Form) length() int {
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

// write writes a key, which is a UUID of 36 characters.
func (f Form) write(key string) (string, error) {
	id, err := uuid.Parse(key)
	if err != nil || id.String() != key {
		return "", errors.New("key: is not a UUID") // a row that was written in SQL
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

// Standard is draft-ietf-httpapi-idempotency-key-header: Idempotency-Key holds a string of RFC 9651. How long keys are
// remembered is for each remote to publish: set Config.KeyWindow.
func Standard() Profile { return Profile{Form: FormString} }

// Stripe is for https://docs.stripe.com/api/idempotent_requests: up to 255 characters, pruned once they are at least 24
// hours old, no effect on DELETE.
func Stripe() Profile { return Profile{MaxLength: 255, Window: 24 * time.Hour} }

// PayPal is for PayPal-Request-Id (https://developer.paypal.com/api/rest/reference/idempotency). How long the server
// stores it differs by API, as each one's reference says: 6 hours for Orders v2, which is the window here, longer
// on request; 45 days for Payments v2. At most 108 characters with Orders v2. Not every API of PayPal's takes it.
func PayPal() Profile {
	return Profile{Header: "PayPal-Request-Id", MaxLength: 108, Window: 6 * time.Hour}
}

// Square is for https://developer.squareup.com/docs/build-basics/common-api-patterns/idempotency: the key is the body's member
// idempotency_key, at most 45 characters with payments (other APIs take more). Square publishes no time for which it
// remembers keys: set Config.KeyWindow to what you rely on.
func Square() Profile { return Profile{BodyMember: "idempotency_key", MaxLength: 45} }

// Adyen is for https://docs.adyen.com/development-resources/api-idempotency: at most 64 characters, for POST, remembered
// for at least 7 days (earlier versions of that page said 31). Keys are not shared between its regional endpoints.
func Adyen() Profile { return Profile{MaxLength: 64, Window: 7 * 24 * time.Hour} }

// withDefaults fills in the header, and returns what is wrong.
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
	n := p.Form.length()
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

// body puts the key into a body that carries it. The result is the same for the same row, whichever attempt it is.
func (p Profile) body(body []byte, key string) ([]byte, error) {
	if p.BodyMember == "" {
		return body, nil
	}
	members := 0
	dec := json.NewDecoder(bytes.NewReader(body))
	if first, err := dec.Token(); err != nil || first != json.Delim('{') || !json.Valid(body) {
		return nil, fmt.Errorf("body: is no JSON object, which would carry the key as %s", p.BodyMember) // and nothing of it is quoted
	}
	for ; dec.More(); members++ {
		name, err := dec.Token()
		if err != nil {
			return nil, errors.New("body: is no JSON object")
		}
		// Some servers compare names without regard to case; two members are two keys there.
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
