package httpsink

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/outbox"
)

// Profile says how a remote takes idempotency keys. The functions below follow the providers'
// documentation, as docs/guide/calls.md lists it; write your own for other remotes. The zero value
// sends a bare UUID in Idempotency-Key, with the window in Config.KeyWindow.
//
// If you change Header, BodyMember or Quoted while calls are pending, their next attempts carry a
// different key and the remote applies them again. Let the outbox run empty first.
type Profile struct {
	// Header is the header that carries the key. Defaults to "Idempotency-Key", unless BodyMember
	// is set.
	Header string

	// BodyMember carries the key in the body instead of a header. It names a member that the sink
	// inserts as the first one into the call's body, a JSON object; the rest stays byte for byte. A
	// call is rejected if its body is not a JSON object or already has the member. Defaults to
	// none.
	BodyMember string

	// Quoted writes the key in double quotes, as a string of RFC 9651. It is for headers. Defaults
	// to false: a bare UUID of 36 characters.
	Quoted bool

	// KeyWindow is how long the remote remembers a key. Defaults to 0: the remote publishes no
	// time, and Config.KeyWindow is required.
	KeyWindow time.Duration

	// Classify reads the provider's own signs in an answer. It is asked after Config.Classify and
	// Config.Outcomes, and returns 0 to leave the answer to its status. Defaults to none.
	Classify func(Answer) outbox.AttemptOutcome
}

// formatKey formats a key, which must be a UUID of 36 characters.
func (p Profile) formatKey(key string) (string, error) {
	if id, err := uuid.Parse(key); err != nil || id.String() != key {
		return "", errors.New("key: is not a UUID") // the row was written in SQL
	}
	if p.Quoted {
		return `"` + key + `"`, nil // it holds nothing that must be escaped
	}
	return key, nil
}

// Standard is draft-ietf-httpapi-idempotency-key-header: Idempotency-Key holds a string of RFC
// 9651. Set Config.KeyWindow.
func Standard() Profile { return Profile{Quoted: true} }

// Stripe sends Idempotency-Key, remembered for 24 hours.
func Stripe() Profile { return Profile{KeyWindow: 24 * time.Hour} }

// PayPal sends PayPal-Request-Id, remembered for 6 hours: set Config.KeyWindow for an API that
// keeps it for longer.
func PayPal() Profile {
	return Profile{Header: "PayPal-Request-Id", KeyWindow: 6 * time.Hour}
}

// Square sends the body's member idempotency_key. Set Config.KeyWindow.
func Square() Profile { return Profile{BodyMember: "idempotency_key"} }

// Adyen sends Idempotency-Key, remembered for 7 days. An answer with the header Transient-Error:
// true, or with the error code 704 (an earlier request under the key is still processed), is tried
// again.
func Adyen() Profile { return Profile{KeyWindow: 7 * 24 * time.Hour, Classify: classifyAdyen} }

// classifyAdyen finds answers that are not final, whatever their status.
func classifyAdyen(a Answer) outbox.AttemptOutcome {
	if strings.EqualFold(strings.TrimSpace(a.Header.Get("Transient-Error")), "true") {
		return outbox.Retry
	}
	var refusal struct {
		ErrorCode string `json:"errorCode"`
	}
	if json.Unmarshal(a.Body, &refusal) == nil && refusal.ErrorCode == "704" {
		return outbox.Retry
	}
	return 0
}

// withDefaults fills in the header, and notes every fault.
func (p *Profile) withDefaults(l *fields.List) {
	if p.Header == "" && p.BodyMember == "" {
		p.Header = "Idempotency-Key"
	}
	switch {
	case p.Header != "" && p.BodyMember != "":
		l.Add("Profile", "Header and BodyMember exclude each other")
	case p.Header != "" && !frozen.Token(p.Header):
		l.Add("Profile.Header", "is %q: must be the name of a header", p.Header)
	case strings.Trim(p.BodyMember, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") != "":
		l.Add("Profile.BodyMember", "is %q: must be letters, digits, _ and -", p.BodyMember)
	}
	if p.Quoted && p.BodyMember != "" {
		l.Add("Profile.Quoted", "must not be set with BodyMember: it is for headers")
	}
	p.Header = http.CanonicalHeaderKey(p.Header)
	if p.KeyWindow < 0 {
		l.Add("Profile.KeyWindow", "is %v: must not be negative", p.KeyWindow)
	}
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
