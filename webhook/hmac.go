package webhook

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// HMAC is a sender that signs with an HMAC in its own layout. It accepts only requests of the
// declared form. A sender of another form, for example one that signs its URL, needs a
// [scheme.Scheme]. For example:
//
//	webhook.HMAC{
//		Name: "acme", SignatureHeader: "X-Acme-Signature", Prefix: "v1=",
//		Time: "X-Acme-Time", Layout: "{time}.{body}",
//		IDMember: "event_id", TypeMember: "kind",
//	}
type HMAC struct {
	// Name is the scheme's name, which is part of dedupe keys. Required.
	Name string

	// Algorithm is HMACSHA256 or HMACSHA512. Defaults to HMACSHA256.
	Algorithm scheme.Algorithm

	// SignatureHeader is the header with the signature. Required.
	SignatureHeader string

	// Encoding is how the signature is written: Hex or Base64. Defaults to Hex.
	Encoding scheme.Encoding

	// Prefix is the text before the signature in its header, for example "sha256=". Defaults to
	// none.
	Prefix string

	// SignaturePart declares that the header is a list, for example "t=1614265330,v1=..." or
	// "ts=1614265330;h1=...", and names the parts that are signatures: "v1". There may be several.
	// The separator is the first comma or semicolon of a header. Prefix must then be empty.
	// Defaults to a header that is one signature.
	SignaturePart string

	// Time is the name of the header with the time of the signature, or with SignaturePart of the
	// part: "t". TimeUnit is its unit: time.Second or time.Millisecond. The time may be 5 minutes
	// off, both ways, unless Config.Tolerance is set. If Time is empty, no time is signed,
	// and a recorded request stays valid forever. TimeUnit defaults to time.Second.
	Time     string
	TimeUnit time.Duration

	// Layout is the layout of the signed bytes, for example "v0:{time}:{body}": {body} once, {time}
	// if a time is signed, {id} if the signature covers IDHeader, and the constant text between
	// them. A delimiter must separate the fields from each other and from the body. Defaults to
	// "{body}".
	Layout string

	// IDHeader is the header, or IDMember the member of the body's JSON object, with the event's
	// id. One of them is required.
	IDHeader, IDMember string

	// TypeHeader is the header, or TypeMember the member, with the event's type. If both are empty,
	// events have no type.
	TypeHeader, TypeMember string
}

// Scheme implements Provider.
func (h HMAC) Scheme() (*scheme.Scheme, error) {
	l, faults := parseLayout(h.Layout)
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("HMAC."+format, args...)) }
	if h.Name == "" || !received.ValidID(h.Name) {
		fault("Name: must be visible ASCII characters")
	}
	if h.Algorithm != scheme.HMACSHA256 && h.Algorithm != scheme.HMACSHA512 {
		fault("Algorithm: must be HMACSHA256 or HMACSHA512")
	}
	if h.Encoding != scheme.Hex && h.Encoding != scheme.Base64 {
		fault("Encoding: must be Hex or Base64")
	}
	if !isToken(h.SignatureHeader) {
		fault("SignatureHeader: must be a header's name")
	}
	header := func(field, name string) {
		if name != "" &&
			(!isToken(name) || http.CanonicalHeaderKey(name) == http.CanonicalHeaderKey(h.SignatureHeader)) {
			fault("%s: %q must be a header's name, and not the signature's", field, name)
		}
	}
	header("IDHeader", h.IDHeader)
	header("TypeHeader", h.TypeHeader)
	if h.SignaturePart == "" {
		header("Time", h.Time)
	}
	if h.SignaturePart != "" && h.Prefix != "" {
		fault("Prefix: must be empty with SignaturePart")
	}
	if !received.Printable(h.Prefix) {
		fault("Prefix: must be printable ASCII")
	}
	if h.SignaturePart != "" && (!isWord(h.SignaturePart+h.Time) || h.SignaturePart == h.Time) {
		fault("SignaturePart and Time: must be two names of letters, digits, _ and -")
	}
	if h.TimeUnit != 0 && h.TimeUnit != time.Second && h.TimeUnit != time.Millisecond {
		fault("TimeUnit: must be time.Second or time.Millisecond")
	}
	timed := h.Time != ""
	if timed != l.time {
		fault("Layout: must have {time} if Time is set, and only then: a time that is not signed proves nothing")
	}
	if (h.IDHeader == "") == (h.IDMember == "") {
		fault("IDHeader and IDMember: one must be set")
	}
	if l.id && h.IDHeader == "" {
		fault("Layout: {id} needs IDHeader")
	}
	if h.TypeHeader != "" && h.TypeMember != "" {
		fault("TypeHeader and TypeMember exclude each other")
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	s := &scheme.Scheme{
		Name:             h.Name,
		IDSigned:         l.id || h.IDMember != "",
		SignatureHeaders: []string{h.SignatureHeader},
		Key:              scheme.RawKey(h.Algorithm),
		Read:             func(f scheme.Fields) (scheme.Signed, error) { return h.read(f, l) },
		Event:            h.event,
	}
	for _, name := range []string{h.IDHeader, h.TypeHeader} {
		if name != "" {
			s.KeepHeaders = append(s.KeepHeaders, name)
		}
	}
	if timed {
		s.Past = 5 * time.Minute
		s.Future = 5 * time.Minute
	}
	return s, nil
}

func (h HMAC) read(f scheme.Fields, l signedLayout) (s scheme.Signed, err error) {
	var id, written string
	if l.id {
		if id, err = f.ID(h.IDHeader); err != nil {
			return scheme.Signed{}, err
		}
		if strings.ContainsAny(id, l.idDelimiters) {
			return scheme.Signed{}, scheme.Malformed(h.IDHeader, "has a character that delimits the signed text")
		}
	}
	unit := cmp.Or(h.TimeUnit, time.Second)
	if h.SignaturePart != "" {
		written, s.Time, s.Signatures, err = h.readPairs(f, unit)
	} else {
		written, s.Time, s.Signatures, err = h.readHeaders(f, unit)
	}
	if err != nil {
		return scheme.Signed{}, err
	}
	fill := func(all []layoutPiece) string {
		var b strings.Builder
		for _, p := range all {
			switch p {
			case "{time}":
				b.WriteString(written)
			case "{id}":
				b.WriteString(id)
			default:
				b.WriteString(string(p))
			}
		}
		return b.String()
	}
	s.Before, s.After = fill(l.before), fill(l.after)
	return s, nil
}

// readPairs reads the signatures and the time from one header, for example "t=1,v1=abc".
func (h HMAC) readPairs(
	f scheme.Fields,
	unit time.Duration,
) (written string, at time.Time, all []scheme.Signature, err error) {
	list, err := f.One(h.SignatureHeader)
	if err != nil {
		return "", time.Time{}, nil, err
	}
	names := pairNames{separator: ",", time: h.Time, signature: h.SignaturePart}
	if at := strings.IndexAny(list, ",;"); at >= 0 {
		names.separator = list[at : at+1]
	}
	return timedPairs(h.SignatureHeader, list, names, h.Algorithm, h.Encoding, unit)
}

// readHeaders reads the signature, and the time from a header of its own if there is one.
func (h HMAC) readHeaders(
	f scheme.Fields,
	unit time.Duration,
) (written string, at time.Time, all []scheme.Signature, err error) {
	one, err := f.Signature(h.SignatureHeader, h.Prefix, h.Algorithm, h.Encoding)
	if err == nil && h.Time != "" {
		written, at, err = f.Time(h.Time, unit)
	}
	return written, at, []scheme.Signature{one}, err
}

func (h HMAC) event(f scheme.Fields, e *scheme.Event) (err error) {
	found := received.Members(e.Body, h.IDMember, h.TypeMember)
	switch {
	case h.TypeHeader != "":
		if e.Type, err = f.One(h.TypeHeader); err != nil {
			return err
		}
	case h.TypeMember != "":
		e.Type = received.String(found[h.TypeMember])
	}
	if h.IDHeader != "" {
		e.ID, err = f.ID(h.IDHeader)
	} else {
		e.ID, err = received.IDMember(found, h.IDMember)
	}
	return err
}
