package idempotency

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
	"github.com/onlyonce/onlyonce/internal/codec"
)

// storedResponse is an answer as it is stored and replayed, byte for byte (H13).
//
//	1 byte    version, 1
//	1 byte    flags: 1 tombstone, 2 reference, 4 operation; at most one of them
//	2 bytes   status
//	4 bytes   number of headers that are set
//	          for each, by name: name, number of values (4 bytes), values in their order
//	4 bytes   number of headers that are added to those of middleware around the layer, and these, likewise
//	4 bytes   number of trailers, and these, likewise
//	          the reference or the operation, if there is one
//	          body
//
// Numbers are big-endian. Texts and the body are preceded by their length, 4 bytes. An
// answer has one encoding, so that records can be compared.
type storedResponse struct {
	Status    int
	Header    http.Header // the headers that may be stored and replace those of middleware around the layer
	Added     http.Header // the headers that may be stored and are added to them
	Trailer   http.Header // sent after the body
	Body      []byte      // nil is empty
	Reference string      // in place of the body, which Route.Render makes of it
	Operation string      // the answer is the 202 of this operation, see operationName
	Tombstone bool        // the body is not kept: it was too long, or Route.DiscardBody is set
}

const (
	responseVersion = 1
	// firstFinal and lastStatus bound the stored status, which is never an informational one.
	firstFinal, lastStatus = 200, 999
)

// errMalformedResponse is returned if stored bytes are not an answer.
var errMalformedResponse = errors.New("idempotency: malformed stored answer")

func (r *storedResponse) encode() []byte {
	size := 24 + len(r.Body) + len(r.Reference) + len(r.Operation)
	fields := []http.Header{r.Header, r.Added, r.Trailer}
	for _, h := range fields {
		for name, values := range h {
			size += 8 + len(name)
			for _, v := range values {
				size += 4 + len(v)
			}
		}
	}
	out := make([]byte, 0, size)
	out = append(out, responseVersion, r.flags())
	out = binary.BigEndian.AppendUint16(out, uint16(r.Status))
	number := func(n int) { out = binary.BigEndian.AppendUint32(out, uint32(n)) }
	text := func(s string) { number(len(s)); out = append(out, s...) }
	for _, h := range fields {
		names := slices.DeleteFunc(sortedNames(h), func(name string) bool { return len(h[name]) == 0 })
		number(len(names))
		for _, name := range names {
			text(name)
			number(len(h[name]))
			for _, v := range h[name] {
				text(v)
			}
		}
	}
	if name := r.Reference + r.Operation; name != "" {
		text(name)
	}
	number(len(r.Body))
	return append(out, r.Body...)
}

const (
	flagTombstone = 1
	flagReference = 2
	flagOperation = 4
)

func (r *storedResponse) flags() byte {
	switch {
	case r.Tombstone:
		return flagTombstone
	case r.Reference != "":
		return flagReference
	case r.Operation != "":
		return flagOperation
	}
	return 0
}

// decodeResponse reads exactly what encode writes. It is the last check between a stored byte and a
// client: names and values are validated again, and a header that must not be stored is not
// replayed (H14), even if an older release or another program wrote it. The body of the result is a
// part of b.
func decodeResponse(b []byte) (*storedResponse, error) {
	d := responseDecoder{rest: b}
	if v := d.bytes(1); v != nil && v[0] != responseVersion {
		return nil, fmt.Errorf("%w: version %d", errMalformedResponse, v[0])
	}
	r := &storedResponse{}
	var flags byte
	if v := d.bytes(1); v != nil {
		flags = v[0]
		r.Tombstone = flags == flagTombstone
		d.fail(flags != 0 && flags != flagTombstone && flags != flagReference && flags != flagOperation, "flags")
	}
	if v := d.bytes(2); v != nil {
		r.Status = int(binary.BigEndian.Uint16(v))
		d.fail(r.Status < firstFinal || r.Status > lastStatus, "status")
	}
	r.Header = d.headers()
	r.Added = d.headers()
	r.Trailer = d.headers()
	if flags >= flagReference {
		name := string(d.text())
		d.fail(name == "", "empty name")
		if flags == flagReference {
			r.Reference = name
		} else {
			r.Operation = name
		}
	}
	if body := d.text(); len(body) > 0 {
		r.Body = body
	}
	d.fail(len(d.rest) > 0, "data after the end")
	if d.err != nil {
		return nil, d.err
	}
	return r, nil
}

// headers reads a list of headers.
func (d *responseDecoder) headers() http.Header {
	h := http.Header{}
	before := ""
	for range d.number(8) {
		name := string(d.text())
		d.fail(name <= before || !protocol.ValidName(name) || http.CanonicalHeaderKey(name) != name, "header")
		before = name
		n := d.number(4)
		d.fail(n == 0, "header without values")
		values := make([]string, 0, n)
		for range n {
			value := string(d.text())
			d.fail(!protocol.ValidHeader("X", value), "header")
			values = append(values, value)
		}
		if d.err != nil {
			return nil
		}
		if protocol.NeverStored(name) == "" {
			h[name] = values
		}
	}
	return h
}

// responseDecoder keeps its first error, and reads nothing after it.
type responseDecoder struct {
	rest []byte
	err  error
}

func (d *responseDecoder) fail(when bool, what string) {
	if when && d.err == nil {
		d.err = fmt.Errorf("%w: %s", errMalformedResponse, what)
	}
}

func (d *responseDecoder) bytes(n int) []byte {
	d.fail(n > len(d.rest), "cut off")
	if d.err != nil {
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

// number reads a count of things of at least each bytes. A count that does not fit into the rest is
// an error, so that it cannot cause a large allocation.
func (d *responseDecoder) number(each int) int {
	b := d.bytes(4)
	if b == nil {
		return 0
	}
	n := binary.BigEndian.Uint32(b)
	d.fail(uint64(n)*uint64(each) > uint64(len(d.rest)), "cut off")
	if d.err != nil {
		return 0
	}
	return int(n)
}

func (d *responseDecoder) text() []byte { return d.bytes(d.number(1)) }

// The kinds of sealed values (H24), see codec.SealPlace: the answer of a record and the results of
// its steps, the input and the result of an operation, and a record's entry in the cache.
const (
	sealedAnswer = "answer"
	sealedStep   = "step"
	sealedInput  = "input"
	sealedResult = "result"
	sealedEntry  = "entry"
)

// sealPlace is where a value is stored, see codec.SealPlace: a record or an operation, the kind of
// the value, and the name of the step.
type sealPlace struct {
	id         [16]byte
	kind, name string
}

func (p sealPlace) hash() [16]byte { return codec.SealPlace(p.id, p.kind, p.name) }

// seal seals a value for a place, and reports whether it did: without a Sealer the value is stored
// as it is (H16).
func (l *Layer) seal(place sealPlace, value []byte) (stored []byte, sealed bool, err error) {
	if l.cfg.Sealer == nil {
		return value, false, nil
	}
	stored, err = l.cfg.Sealer.Seal(place.hash(), value)
	return stored, true, err
}

var (
	// errNoSealer is returned for a sealed value if there is no Sealer.
	errNoSealer = errors.New("idempotency: the stored value is sealed, but Config.Sealer is not set")
	// errUnsealed is returned for a value that is not sealed although the configuration requires
	// it.
	errUnsealed = errors.New("idempotency: the stored value is not sealed, but Config.RequireSealed is set")
)

// unseal returns the value that was stored in a place (H24).
func (l *Layer) unseal(place sealPlace, stored []byte, sealed bool) ([]byte, error) {
	switch {
	case !sealed && l.cfg.RequireSealed:
		return nil, errUnsealed
	case !sealed:
		return stored, nil
	case l.cfg.Sealer == nil:
		return nil, errNoSealer
	}
	return l.cfg.Sealer.Open(place.hash(), stored)
}
