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

// Verifier verifies the requests of one endpoint. It is immutable and safe for concurrent use.
type Verifier struct {
	scheme       *Scheme
	keys         []Key
	past, future time.Duration
	maxBody      int
	keptHeaders  []string
}

// Verify returns the event of a request, or an [*Error] that says why the request is refused. The
// body is all bytes as they arrived; if you read it yourself, stop one byte after MaxBody. The
// checks, in their order:
//
//  1. the body's length (ErrTooLarge);
//  2. the headers that hold the signatures and what they sign (ErrMalformed), without the body;
//  3. the signatures over the raw bytes (ErrSignature);
//  4. the signed time (ErrStale);
//  5. the event's id and type, and the headers to keep (ErrMalformed).
func (v *Verifier) Verify(header http.Header, body []byte) (*Event, error) {
	return v.VerifyAt(time.Now(), header, body)
}

// VerifyAt is Verify at another time than now, for example for a request that was recorded.
func (v *Verifier) VerifyAt(now time.Time, header http.Header, body []byte) (*Event, error) {
	e, err := v.verify(now, Fields{header}, body)
	if err != nil {
		return nil, refusal(v.scheme.Name, err)
	}
	return e, nil
}

// checkHeaders makes the checks that need no body: its announced length, and the headers.
func (v *Verifier) checkHeaders(header http.Header, length int64) error {
	if length > int64(v.maxBody) {
		return refusal(v.scheme.Name, &Error{Check: ErrTooLarge})
	}
	signed, err := v.scheme.Read(Fields{header})
	if err == nil && len(signed.Signatures) > maxSignatures {
		err = Malformed("", "has more than 16 signatures")
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
		return nil, Malformed("", "has more than 16 signatures")
	}
	// W5: the MAC is checked first. Otherwise an unsigned request could find out this machine's
	// clock from the answer.
	if !v.authentic(signed, body) {
		return nil, &Error{Check: ErrSignature}
	}
	if err := v.checkTime(signed.Time, now); err != nil {
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
	e.Header, err = v.headersToKeep(f)
	return e, err
}

// authentic compares each signature with each key of its algorithm: one MAC per key over the raw
// bytes (W3). The comparison takes constant time and never stops early, so that its duration does
// not reveal which secret or signature was nearer (W4). A value of another length than a
// signature's equals none.
func (v *Verifier) authentic(s Signed, body []byte) bool {
	equal := 0
	var message []byte // Ed25519 reads it twice, and needs it in one piece
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

// checkTime compares the signed time with the clock, in the directions that the scheme checks (W5).
func (v *Verifier) checkTime(signed, now time.Time) error {
	switch {
	case v.past == 0 && v.future == 0:
		return nil
	case signed.IsZero():
		return &Error{Check: ErrStale, Reason: "the request has no signed time"}
	case v.past > 0 && now.Sub(signed) > v.past:
		return &Error{Check: ErrStale, Reason: "the signed time is too far in the past"}
	case v.future > 0 && signed.Sub(now) > v.future:
		return &Error{Check: ErrStale, Reason: "the signed time is too far in the future"}
	}
	return nil
}

// headersToKeep returns the headers that are to be kept (W14). A header that Postgres could not
// store as text, or that would fill the table, refuses the request. If it were left out instead,
// the loss would be noticed much later.
func (v *Verifier) headersToKeep(f Fields) (http.Header, error) {
	kept, size := http.Header{}, 0
	for _, name := range v.keptHeaders {
		for _, value := range f.header[name] {
			if size += len(name) + len(value); len(value) > maxFieldBytes || size > maxKeptBytes {
				return nil, Malformed(name, "is too long to be kept")
			}
			if !isPrintable(strings.ReplaceAll(value, "\t", " ")) {
				return nil, Malformed(name, "has bytes that are not printable ASCII")
			}
			kept[name] = append(kept[name], value)
		}
	}
	return kept, nil
}

// validType reports whether s can be an event's type. It rejects text that should not be in a log.
func validType(s string) bool {
	return len(s) <= 255 && utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}
