package webhook

import (
	"crypto/ed25519"
	"crypto/subtle"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Verifier verifies the requests of one endpoint. It is safe for concurrent use, and never changes.
type Verifier struct {
	scheme       *Scheme
	keys         []Key
	past, future time.Duration
	maxBody      int
	keep         []string
}

// Verify returns the event that a request tells, or an [*Error] that says why it does not count. The body is all of the
// bytes as they came: whoever reads them stops one behind MaxBody. The checks, in their order:
//
//  1. the body's length (ErrTooLarge);
//  2. the headers that hold the signatures and what they sign (ErrMalformed); the body is not looked at;
//  3. the signatures over the raw bytes (ErrSignature);
//  4. the signed time (ErrStale);
//  5. what the event is called, and the headers to keep (ErrMalformed).
func (v *Verifier) Verify(header http.Header, body []byte) (*Event, error) {
	return v.VerifyAt(time.Now(), header, body)
}

// VerifyAt is Verify at another time than now: for requests that were recorded.
func (v *Verifier) VerifyAt(now time.Time, header http.Header, body []byte) (*Event, error) {
	e, err := v.verify(now, Fields{header}, body)
	if err != nil {
		return nil, refusal(v.scheme.Name, err)
	}
	return e, nil
}

// expect is the part of Verify that needs no body: its length as announced, and the headers.
func (v *Verifier) expect(header http.Header, length int64) error {
	if length > int64(v.maxBody) {
		return refusal(v.scheme.Name, &Error{Check: ErrTooLarge})
	}
	signed, err := v.scheme.Read(Fields{header})
	if err == nil && len(signed.Signatures) > maxSignatures {
		err = Malformed("", "more than 16 signatures")
	}
	if err != nil {
		return refusal(v.scheme.Name, err)
	}
	return nil
}

func (v *Verifier) verify(now time.Time, f Fields, body []byte) (*Event, error) {
	if len(body) > v.maxBody { // W2
		return nil, &Error{Check: ErrTooLarge}
	}
	signed, err := v.scheme.Read(f)
	if err != nil {
		return nil, err
	}
	if len(signed.Signatures) > maxSignatures { // W4
		return nil, Malformed("", "more than 16 signatures")
	}
	// W5: the MAC first. An answer about the time of a request that nobody signed would tell this machine's clock.
	if !v.authentic(signed, body) {
		return nil, &Error{Check: ErrSignature}
	}
	if err := v.fresh(signed.Time, now); err != nil {
		return nil, err
	}
	e := &Event{Provider: v.scheme.Name, IDSigned: v.scheme.IDSigned, Time: signed.Time, Body: body}
	if err := v.scheme.Event(f, e); err != nil {
		return nil, err
	}
	if !validID(e.ID) && !(e.Probe && e.ID == "") {
		return nil, Malformed("", "has no id of 1 to 255 visible ASCII characters")
	}
	if !validType(e.Type) {
		e.Type = ""
	}
	e.Header, err = v.kept(f)
	return e, err
}

// authentic compares each signature with each key of its algorithm: one MAC a key over the raw bytes (W3), in constant
// time and to the end, so that how long it takes says nothing of which secret or signature was nearer (W4). Values of another
// length than a signature's equal none.
func (v *Verifier) authentic(s Signed, body []byte) bool {
	equal := 0
	var message []byte // Ed25519 reads it twice, and needs it whole
	for _, key := range v.keys {
		var want []byte
		for _, sig := range s.Signatures {
			switch {
			case sig.Algorithm != key.algorithm:
			case key.algorithm == Ed25519:
				if message == nil {
					message = slices.Concat([]byte(s.Before), body, []byte(s.After))
				}
				if ed25519.Verify(key.public(), message, sig.Value) {
					return true // everything in it is public
				}
			default:
				if want == nil {
					mac := key.mac()
					_, _ = mac.Write([]byte(s.Before))
					_, _ = mac.Write(body)
					_, _ = mac.Write([]byte(s.After))
					want = mac.Sum(nil)
				}
				equal |= subtle.ConstantTimeCompare(want, sig.Value)
			}
		}
	}
	return equal == 1
}

// fresh compares the signed time with the clock, as far as the scheme says so (W5).
func (v *Verifier) fresh(signed, now time.Time) error {
	switch {
	case v.past == 0 && v.future == 0:
		return nil
	case signed.IsZero():
		return &Error{Check: ErrStale, Reason: "it has no time"}
	case v.past > 0 && now.Sub(signed) > v.past:
		return &Error{Check: ErrStale, Reason: "its time is too long ago"}
	case v.future > 0 && signed.Sub(now) > v.future:
		return &Error{Check: ErrStale, Reason: "its time is too far ahead"}
	}
	return nil
}

// kept returns the headers on the list (W14). One that Postgres could not store as text, or that would fill the table, refuses
// the request: an event that lacks what was configured would be found out much later.
func (v *Verifier) kept(f Fields) (http.Header, error) {
	kept, size := http.Header{}, 0
	for _, name := range v.keep {
		for _, value := range f.header[name] {
			if size += len(name) + len(value); len(value) > maxField || size > maxKept {
				return nil, Malformed(name, "is too long to be kept")
			}
			if !printable(strings.ReplaceAll(value, "\t", " ")) {
				return nil, Malformed(name, "has bytes that are not printable ASCII")
			}
			kept[name] = append(kept[name], value)
		}
	}
	return kept, nil
}

// validType tells names from what should not stand in a log.
func validType(s string) bool {
	return len(s) <= 255 && utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}
