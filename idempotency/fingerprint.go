package idempotency

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"mime"
	"slices"
	"strings"
)

// FingerprintKey is what fingerprints are made with: 32 random bytes, kept where secrets are kept.
type FingerprintKey [32]byte

// Fingerprint says when two bodies are the same.
type Fingerprint int

// Fingerprints.
const (
	// FingerprintRaw compares bodies byte by byte. A client that asks again sends the same bytes.
	FingerprintRaw Fingerprint = iota
	// FingerprintJSON compares what JSON bodies say: the order of members, white space and the way in which a string is
	// escaped do not count. Numbers count as they are written: 1.0 is not 1, because which of the two it was may matter to
	// the handler, and because no reading of numbers keeps all that are sent. It is for clients that write the same request anew each
	// time. A body that is no JSON text, has a member twice (or two whose names differ only in case), is not UTF-8 or is nested deeper than 64 is refused; an empty
	// one is not, and equals an empty one.
	FingerprintJSON
)

// A fingerprint is
//
//	1 byte    version of the algorithm, 1
//	1 byte    mode, a Fingerprint
//	4 bytes   id of the key, big-endian
//	32 bytes  HMAC-SHA-256
//
// It is an HMAC because fingerprints outlive their bodies, and lie where bodies need not be: a plain hash of a body with a card number
// in it can be searched for, all numbers being few enough to try. What is hashed begins with the record and its scope, so that no two of
// them ever share one: equal fingerprints would say that two tenants sent the same.
const (
	fingerprintVersion = 1
	fingerprintHead    = 1 + 1 + 4
	fingerprintLen     = fingerprintHead + sha256.Size
)

// errFingerprint says that a stored fingerprint cannot be compared with: its version, mode or key is unknown here.
var errFingerprint = errors.New("idempotency: unknown fingerprint")

// fingerprinter makes fingerprints with one key, and compares those that it has a key for.
type fingerprinter struct {
	current uint32
	keys    map[uint32]FingerprintKey
}

func newFingerprinter(current uint32, keys map[uint32]FingerprintKey) (*fingerprinter, error) {
	var faults []error
	for _, id := range slices.Sorted(maps.Keys(keys)) {
		if keys[id] == (FingerprintKey{}) {
			faults = append(faults, fmt.Errorf("key %d is all zeros", id))
		}
	}
	if _, has := keys[current]; !has {
		faults = append(faults, fmt.Errorf("the current key, %d, is not among the keys", current))
	}
	return &fingerprinter{current: current, keys: maps.Clone(keys)}, errors.Join(faults...)
}

// subject is what a fingerprint is of (H7).
type subject struct {
	Record             [16]byte
	Tenant, Scope, Key string
	Method             string
	Path               string // escaped, as it came
	Query              string // raw
	MediaType          string // the field Content-Type, as it came
	Coding             string // the field Content-Encoding, as it came
	Headers            [][2]string
	Trailers           [][2]string
	Body               []byte
	Mode               Fingerprint
}

// sum returns the subject's fingerprint under the current key. Its only error is errJSON.
func (f *fingerprinter) sum(s *subject) ([]byte, error) {
	return f.with(fingerprintVersion, s.Mode, f.current, s)
}

// matches says whether a stored fingerprint is the subject's. How it was made decides how it is compared, so that a route's mode
// and the key can change while records from before are still there. An error is errJSON or errFingerprint.
func (f *fingerprinter) matches(stored []byte, s *subject) (bool, error) {
	if len(stored) != fingerprintLen {
		return false, fmt.Errorf("%w: it has %d bytes", errFingerprint, len(stored))
	}
	made, err := f.with(stored[0], Fingerprint(stored[1]), binary.BigEndian.Uint32(stored[2:]), s)
	if err != nil {
		return false, err
	}
	return hmac.Equal(made, stored), nil
}

func (f *fingerprinter) with(version byte, mode Fingerprint, id uint32, s *subject) ([]byte, error) {
	key, has := f.keys[id]
	switch {
	case version != fingerprintVersion:
		return nil, fmt.Errorf("%w: version %d", errFingerprint, version)
	case mode != FingerprintRaw && mode != FingerprintJSON:
		return nil, fmt.Errorf("%w: mode %d", errFingerprint, mode)
	case !has:
		return nil, fmt.Errorf("%w: no key %d", errFingerprint, id)
	}
	body := s.Body
	if mode == FingerprintJSON && len(body) > 0 {
		var err error
		if body, err = canonicalJSON(body); err != nil {
			return nil, err
		}
	}
	out := make([]byte, fingerprintHead, fingerprintLen)
	out[0], out[1] = version, byte(mode)
	binary.BigEndian.PutUint32(out[2:], id)
	mac := hmac.New(sha256.New, key[:])
	mac.Write(out)
	var length [8]byte
	number := func(n int) {
		binary.BigEndian.PutUint64(length[:], uint64(n))
		mac.Write(length[:])
	}
	// A length before each field, so that what ends one cannot begin the next: "a" and "bc" are not "ab" and "c".
	field := func(b []byte) {
		number(len(b))
		mac.Write(b)
	}
	field(s.Record[:])
	for _, v := range []string{s.Tenant, s.Scope, s.Key, s.Method, s.Path, s.Query, mediaType(s.MediaType), coding(s.Coding)} {
		field([]byte(v))
	}
	for _, fields := range [][][2]string{s.Headers, s.Trailers} {
		fields := slices.Clone(fields)
		for i := range fields {
			fields[i][0] = strings.ToLower(fields[i][0])
		}
		slices.SortStableFunc(fields, func(a, b [2]string) int { return cmp.Compare(a[0], b[0]) })
		number(len(fields))
		for _, f := range fields {
			field([]byte(f[0]))
			field([]byte(f[1]))
		}
	}
	field(body)
	return mac.Sum(out), nil
}

// coding is how a Content-Encoding counts: its codings in their order, without their case; "identity" says nothing.
func coding(field string) string {
	var codings []string
	for c := range strings.SplitSeq(strings.ToLower(field), ",") {
		if c = strings.Trim(c, " \t"); c != "" && c != "identity" {
			codings = append(codings, c)
		}
	}
	return strings.Join(codings, ",")
}

// mediaType is how a Content-Type counts: type and names of parameters without their case, parameters in any order, quoted or not. A
// charset of UTF-8 does not count, because it says what most types mean without it (JSON knows no other: RFC 8259 section 11), and
// clients of one API differ in whether they write it. Any other parameter does: the same bytes in another charset, or cut at
// another boundary, are another request. A field that cannot be parsed counts as it came.
func mediaType(field string) string {
	media, params, err := mime.ParseMediaType(field)
	if err != nil {
		return "?" + field // no parsed one begins like this
	}
	if strings.EqualFold(params["charset"], "utf-8") {
		delete(params, "charset")
	}
	formatted := mime.FormatMediaType(media, params)
	if formatted == "" {
		return "?" + field
	}
	return formatted
}
