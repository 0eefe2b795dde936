package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"maps"
	"mime"
	"slices"
	"strings"
	"sync"

	"github.com/onlyonce/onlyonce/seal"
)

// fingerprintMode decides when two bodies are the same request.
type fingerprintMode int

const (
	fingerprintRaw      fingerprintMode = 0 // byte by byte
	fingerprintJSON     fingerprintMode = 1 // see Route.FingerprintJSON
	fingerprintBodyOnly fingerprintMode = 2 // added to one of the others: see Route.FingerprintBodyOnly
)

// comparesJSON reports whether bodies are compared by what their JSON says.
func (m fingerprintMode) comparesJSON() bool { return m&fingerprintJSON != 0 }

// comparesHeaders reports whether headers count.
func (m fingerprintMode) comparesHeaders() bool { return m&fingerprintBodyOnly == 0 }

// A fingerprint is
//
//	1 byte    version of the algorithm, 1
//	1 byte    mode, a fingerprintMode
//	4 bytes   id of the key, big-endian
//	32 bytes  HMAC-SHA-256
//
// It is an HMAC because a fingerprint is kept longer than its body, and in more places. A plain
// hash of a body with a card number could be searched for: there are few enough card numbers to try
// them all. The record's id and scope are hashed first, so that no two records have equal
// fingerprints, which would reveal that two tenants sent the same.
const (
	fingerprintVersion = 1
	fingerprintHead    = 1 + 1 + 4
	fingerprintLen     = fingerprintHead + sha256.Size
)

// errFingerprint is returned for a stored fingerprint whose version, mode or key is unknown to this
// process.
var errFingerprint = errors.New("idempotency: the stored fingerprint cannot be compared")

// fingerprinter makes fingerprints with the current key, and compares those of every key that it
// has (H7).
type fingerprinter struct {
	current uint32
	macs    map[uint32]*sync.Pool // of HMACs, by the id of the key
}

func newFingerprinter(keys seal.Keys) (*fingerprinter, error) {
	var faults []error
	for _, id := range slices.Sorted(maps.Keys(keys.ByID)) {
		if keys.ByID[id] == (seal.Key{}) {
			faults = append(faults, fmt.Errorf("key %d is all zeros", id))
		}
	}
	if _, has := keys.ByID[keys.Current]; !has {
		faults = append(faults, fmt.Errorf("the current key, %d, is not among the keys", keys.Current))
	}
	f := &fingerprinter{current: keys.Current, macs: map[uint32]*sync.Pool{}}
	for id, key := range keys.ByID {
		f.macs[id] = &sync.Pool{New: func() any { return hmac.New(sha256.New, key[:]) }}
	}
	return f, errors.Join(faults...)
}

// fingerprintSubject is what a fingerprint covers (H7).
type fingerprintSubject struct {
	Record             [16]byte
	Tenant, Scope, Key string
	Method             string
	Path               string // escaped, as received
	Query              string // raw
	MediaType          string // the header Content-Type, as received
	Coding             string // the header Content-Encoding, as received
	Headers            [][2]string
	Trailers           [][2]string
	Body               []byte
	Mode               fingerprintMode
}

// sum returns the subject's fingerprint under the current key. Its only error is errJSON.
func (f *fingerprinter) sum(s *fingerprintSubject) ([]byte, error) {
	return f.hashWith(fingerprintVersion, s.Mode, f.current, s)
}

// matches reports whether a stored fingerprint is the subject's, whose fingerprint by sum is own.
// The stored version, mode and key decide how it is compared, so that a route's mode and the
// current key can change while older records exist. The error is errJSON or errFingerprint.
func (f *fingerprinter) matches(stored []byte, s *fingerprintSubject, own []byte) (bool, error) {
	if len(stored) != fingerprintLen {
		return false, fmt.Errorf("%w: it has %d bytes", errFingerprint, len(stored))
	}
	if bytes.HasPrefix(own, stored[:fingerprintHead]) {
		return hmac.Equal(own, stored), nil
	}
	made, err := f.hashWith(stored[0], fingerprintMode(stored[1]), binary.BigEndian.Uint32(stored[2:]), s)
	if err != nil {
		return false, err
	}
	return hmac.Equal(made, stored), nil
}

func (f *fingerprinter) hashWith(version byte, mode fingerprintMode, id uint32, s *fingerprintSubject) ([]byte, error) {
	pool, has := f.macs[id]
	switch {
	case version != fingerprintVersion:
		return nil, fmt.Errorf("%w: version %d", errFingerprint, version)
	case mode > fingerprintJSON|fingerprintBodyOnly:
		return nil, fmt.Errorf("%w: mode %d", errFingerprint, mode)
	case !has:
		return nil, fmt.Errorf("%w: key %d is not in Config.FingerprintKeys", errFingerprint, id)
	}
	c, err := s.compared(mode)
	if err != nil {
		return nil, err
	}
	out := make([]byte, fingerprintHead, fingerprintLen)
	out[0], out[1] = version, byte(mode)
	binary.BigEndian.PutUint32(out[2:], id)
	mac := pool.Get().(hash.Hash)
	defer pool.Put(mac)
	mac.Reset()
	// All but the body is hashed in one Write, which costs more than the few bytes of a field.
	mac.Write(s.appendHead(append(make([]byte, 0, 512), out...), c))
	for _, piece := range c.content {
		mac.Write(piece)
	}
	return mac.Sum(out), nil
}

// comparedParts are what a mode makes of a subject's media type, coding, headers and body.
type comparedParts struct {
	media, coding string
	headers       [][][2]string
	content       [][]byte
}

// compared returns what a mode compares. The error is errJSON.
func (s *fingerprintSubject) compared(mode fingerprintMode) (c comparedParts, err error) {
	body := s.Body
	if mode.comparesJSON() && len(body) > 0 {
		if body, err = canonicalJSON(body); err != nil {
			return c, err
		}
	}
	c.content = [][]byte{body}
	if mode.comparesHeaders() {
		c.media = normalizedMediaType(s.MediaType)
		c.coding = normalizedCoding(s.Coding)
		c.headers = [][][2]string{s.Headers, s.Trailers}
	}
	if mode == fingerprintRaw && c.coding == "" {
		if withoutBoundary, parts, ok := multipartParts(s.MediaType, body); ok {
			c.media = "parts " + withoutBoundary // no other media type begins so
			c.content = parts
		}
	}
	return c, nil
}

// appendHead appends what is hashed before the body: the fields, and the lengths of the body's
// pieces.
func (s *fingerprintSubject) appendHead(head []byte, c comparedParts) []byte {
	number := func(n int) { head = binary.BigEndian.AppendUint64(head, uint64(n)) }
	// Each field is preceded by its length, so that the end of one cannot pass for the start of the
	// next: "a", "bc" differs from "ab", "c".
	field := func(text string) {
		number(len(text))
		head = append(head, text...)
	}
	for _, v := range []string{
		string(s.Record[:]),
		s.Tenant,
		s.Scope,
		s.Key,
		s.Method,
		s.Path,
		s.Query,
		c.media,
		c.coding,
	} {
		field(v)
	}
	for _, fields := range c.headers {
		fields := slices.Clone(fields)
		for i := range fields {
			fields[i][0] = strings.ToLower(fields[i][0])
		}
		slices.SortStableFunc(fields, func(a, b [2]string) int { return cmp.Compare(a[0], b[0]) })
		number(len(fields))
		for _, f := range fields {
			field(f[0])
			field(f[1])
		}
	}
	for _, piece := range c.content {
		number(len(piece))
	}
	return head
}

// normalizedCoding normalizes a Content-Encoding: its codings in order, in lower case, without
// "identity".
func normalizedCoding(field string) string {
	var codings []string
	for c := range strings.SplitSeq(strings.ToLower(field), ",") {
		if c = strings.Trim(c, " \t"); c != "" && c != "identity" {
			codings = append(codings, c)
		}
	}
	return strings.Join(codings, ",")
}

// normalizedMediaType normalizes a Content-Type: type and parameter names in lower case, parameters
// sorted, quotes only where they are needed. A charset of UTF-8 is dropped, because it is the
// default for most types (JSON allows no other: RFC 8259 section 11), and clients of one API differ
// in whether they send it. All other parameters count; of a multipart body the boundary does not,
// see multipartParts. A value that cannot be parsed counts as it was received.
func normalizedMediaType(field string) string {
	if field == "application/json" { // as most are, and what the rest comes to
		return field
	}
	media, params, err := mime.ParseMediaType(field)
	if err != nil {
		return "?" + field // a parsed one never starts with "?"
	}
	if strings.EqualFold(params["charset"], "utf-8") {
		delete(params, "charset")
	}
	return cmp.Or(mime.FormatMediaType(media, params), "?"+field)
}

// checkKeysSQL compares check values with those in the database, and writes those of new ids. In:
// ids, check values. Out: one row: the ids whose value is another. Uses the primary key; a new id
// waits for a process that writes it at the same time. The migration documents the function.
const checkKeysSQL = `select onlyonce.http_check_keys($1, $2)`

// errKeyChanged is returned if the database knows another secret under an id than this process has.
var errKeyChanged = errors.New("idempotency: Config.FingerprintKeys has another secret under an id than " +
	"earlier processes had")

// checkValues returns the ids of the keys, and a check value for each: an HMAC of its id. The first
// byte keeps it apart from a fingerprint, which begins with its version.
func (f *fingerprinter) checkValues() (ids []int64, values [][]byte) {
	for _, id := range slices.Sorted(maps.Keys(f.macs)) {
		mac := f.macs[id].Get().(hash.Hash)
		mac.Reset()
		mac.Write(binary.BigEndian.AppendUint32([]byte("check value of key "), id))
		ids, values = append(ids, int64(id)), append(values, mac.Sum(nil))
		f.macs[id].Put(mac)
	}
	return ids, values
}

// checkKeys returns an error if the database knows another secret under an id of
// Config.FingerprintKeys (H30). It asks the database until it has found the keys good once. Keys
// that are not current count too: records that are hashed with them are compared.
func (l *Layer) checkKeys(ctx context.Context) error {
	if l.keysChecked.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.AcquireTimeout)
	defer cancel()
	ids, values := l.fingerprints.checkValues()
	var changed []int64
	err := l.pool.QueryRow(ctx, checkKeysSQL, ids, values).Scan(&changed)
	for reruns := 0; mustRerun(err) && reruns < rerunLimit; reruns++ { // another process has written the same id
		err = l.pool.QueryRow(ctx, checkKeysSQL, ids, values).Scan(&changed)
	}
	if err != nil {
		return fmt.Errorf("idempotency: checking the keys of fingerprints: %w", err)
	}
	if len(changed) > 0 {
		return fmt.Errorf(
			"%w: ids %d: retries would look like other requests under their keys; "+
				"give this process the secret that earlier ones had, or give the new secret an id of its own",
			errKeyChanged,
			changed,
		)
	}
	l.keysChecked.Store(true)
	return nil
}

// refuseChangedKey refuses a request before its fingerprint is compared or stored, if the keys are
// not those of earlier processes.
func (req *servedRequest) refuseChangedKey() (rep reply, refused bool) {
	err := req.layer.checkKeys(req.ctx)
	switch {
	case errors.Is(err, errKeyChanged):
		return problemReply(codeKeyChanged, err), true
	case err != nil:
		return problemReply(codeStoreUnavailable, err), true
	}
	return reply{}, false
}
