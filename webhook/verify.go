package webhook

import (
	"context"
	"crypto/sha256"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/internal/secrets"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// maxKeptBytes is the most bytes of a request's kept headers together, including names.
const maxKeptBytes = 16 << 10

// Verifier verifies the requests of one endpoint. It is immutable and safe for concurrent use.
type Verifier struct {
	scheme       *scheme.Scheme
	keys         []scheme.Key
	past, future time.Duration
	maxBody      int
	keptHeaders  []string

	// With Config.TenantSecrets, in place of keys.
	tenantOf func(*http.Request) string
	tenants  *secrets.Store
	decoys   []scheme.Key
}

// Request is the part of an HTTP request that a Verifier reads.
type Request struct {
	// Header is the request's headers.
	Header http.Header

	// Query is the request's query as it came, without the question mark: [net/url.URL.RawQuery].
	// Some senders sign it, for example Twilio. Defaults to none.
	Query string

	// Body is all bytes of the body as they arrived. If you read it yourself, stop one byte after
	// MaxBody.
	Body []byte

	// Tenant is whose secret must have signed, with Config.TenantSecrets. An [Endpoint] gets it
	// from TenantSecrets.Tenant. Defaults to none: then no signature is right.
	Tenant string

	// Time is the clock for the check of the signed time, for example if the request was recorded.
	// Defaults to now.
	Time time.Time
}

// Verify is VerifyRequest with only the headers and the body of a request.
func (v *Verifier) Verify(header http.Header, body []byte) (*Event, error) {
	return v.VerifyRequest(context.Background(), Request{Header: header, Body: body})
}

// VerifyAt is Verify at another time than now.
func (v *Verifier) VerifyAt(now time.Time, header http.Header, body []byte) (*Event, error) {
	return v.VerifyRequest(context.Background(), Request{Header: header, Body: body, Time: now})
}

// VerifyRequest returns the event of a request, or an [*Error] that says why the request is
// refused. The checks, in their order:
//
//  1. the body's length (ErrTooLarge);
//  2. the headers with the signatures and the signed values (ErrMalformed), without the body;
//  3. the signed part of the body, if that is not the whole body (ErrMalformed);
//  4. the signatures over the raw bytes (ErrSignature). If the sender signs with a certificate, it
//     is fetched first, and with TenantSecrets the tenant's secrets are looked up (ErrUnavailable);
//  5. the signed time (ErrStale);
//  6. the event's id and type, and the headers to keep (ErrMalformed).
func (v *Verifier) VerifyRequest(ctx context.Context, r Request) (*Event, error) {
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	e, err := v.verify(ctx, r)
	if err != nil {
		return nil, refusal(v.scheme.Name, err)
	}
	return e, nil
}

// Handshake answers a sender's request that checks, before the first event, that the endpoint
// exists and belongs to the account that registered it (W13). If is is true, answer the request
// with 200 and the text, as text/plain. If the error is not nil, refuse it. Otherwise the request
// is no handshake. An [Endpoint] calls it by itself.
func (v *Verifier) Handshake(method, query string) (text string, is bool, err error) {
	if v.scheme.Handshake == nil {
		return "", false, nil
	}
	values, err := received.ParseQuery(query)
	if err == nil {
		text, is, err = v.scheme.Handshake(method, values)
	}
	if err != nil {
		return "", false, refusal(v.scheme.Name, err)
	}
	return text, is, nil
}

// Confirm carries out a verified probe's request besides an answer: for Amazon SNS it confirms the
// subscription. Call it before you answer, and answer with the error's status if there is one. For
// other events and other providers it has no effect. An [Endpoint] calls it by itself (W20).
func (v *Verifier) Confirm(ctx context.Context, e *Event) error {
	if v.scheme.Confirm == nil || !e.Probe {
		return nil
	}
	if err := v.scheme.Confirm(ctx, &scheme.Event{
		Body:      e.Body,
		ID:        e.ID,
		Type:      e.Type,
		Probe:     true,
		Challenge: e.Challenge,
	}); err != nil {
		return refusal(v.scheme.Name, err)
	}
	return nil
}

// checkHeaders makes the checks that need no body: its announced length, and the headers (W17).
func (v *Verifier) checkHeaders(header http.Header, query string, length int64) error {
	if length > int64(v.maxBody) {
		return refusal(v.scheme.Name, &Error{Check: ErrTooLarge})
	}
	signed, err := v.scheme.Read(scheme.Fields{Header: header, RawQuery: query})
	if err == nil && len(signed.Signatures) > received.MaxSignatures {
		err = scheme.Malformed("", "has more than 16 signatures")
	}
	if err != nil {
		return refusal(v.scheme.Name, err)
	}
	return nil
}

// identify gives an event an id if its sender gives none. A hash would make one event of two that
// have the same body (W7).
func (v *Verifier) identify(e *Event, content []byte) {
	if e.signed != nil {
		sum := sha256.Sum256(content)
		e.signed = sum[:]
	}
	if _, named := v.names(e); named {
		e.ID = received.ContentID(content)
		return
	}
	e.ID = received.DeliveryID()
	e.IDSigned = false
}

// names reports whether the event's body names itself, and by what else.
func (v *Verifier) names(e *Event) (by string, named bool) {
	if v.scheme.Names == nil {
		return "", false
	}
	return v.scheme.Names(e.Type, e.Body)
}

// verify checks the signature over the bytes that came, before anything reads them (W2).
func (v *Verifier) verify(ctx context.Context, r Request) (*Event, error) {
	f := scheme.Fields{Header: r.Header, RawQuery: r.Query}
	body := r.Body
	if len(body) > v.maxBody { // W2
		return nil, &Error{Check: ErrTooLarge}
	}
	signed, err := v.scheme.Read(f)
	if err == nil && v.scheme.ReadBody != nil {
		err = v.scheme.ReadBody(f, body, &signed)
	}
	if err != nil {
		return nil, err
	}
	if len(signed.Signatures) > received.MaxSignatures { // W4
		return nil, scheme.Malformed("", "has more than 16 signatures")
	}
	// W5: the signature is checked first. Otherwise an unsigned request could find out this
	// machine's clock from the answer.
	if err := v.checkSignature(ctx, r, signed); err != nil {
		return nil, err
	}
	if err := v.checkTime(signed.Time, r.Time); err != nil {
		return nil, err
	}
	e := &Event{Provider: v.scheme.Name, IDSigned: v.scheme.IDSigned, Time: signed.Time, Body: body}
	if v.tenants != nil {
		e.Tenant = r.Tenant
	}
	read := scheme.Event{Body: body}
	if signed.Messages != nil {
		sum := sha256.Sum256(signed.Messages[0])
		e.signed = sum[:]
	}
	if err := v.scheme.Event(f, &read); err != nil {
		return nil, err
	}
	e.ID = read.ID
	e.Type = read.Type
	e.Probe = read.Probe
	e.Challenge = read.Challenge
	e.Body = read.Body
	if read.Content != nil {
		v.identify(e, read.Content)
	}
	if !received.ValidID(e.ID) && !(e.Probe && e.ID == "") {
		return nil, scheme.Malformed("", "has no id of 1 to 255 visible ASCII characters")
	}
	if !validType(e.Type) {
		e.Type = ""
	}
	e.Header, err = v.headersToKeep(f)
	return e, err
}

// authentic compares each signature with each key of its algorithm: one MAC for each key and
// message over the raw bytes (W3). It never stops early, so that its duration does not reveal which
// secret or signature was nearer (W4).
func authentic(keys []scheme.Key, s scheme.Signed, body []byte) bool {
	messages := [][][]byte{{[]byte(s.Before), body, []byte(s.After)}}
	if s.Messages != nil {
		messages = nil
		for _, m := range s.Messages {
			messages = append(messages, [][]byte{m})
		}
	}
	right := make([]int, len(s.Signatures))
	for _, key := range keys {
		if !slices.ContainsFunc(s.Signatures, func(sig scheme.Signature) bool {
			return sig.Algorithm == key.Algorithm()
		}) {
			continue
		}
		for _, message := range messages {
			check := key.Checker(message)
			for i, sig := range s.Signatures {
				if sig.Algorithm == key.Algorithm() {
					right[i] |= check(sig.Value)
				}
			}
		}
	}
	all := 0
	for _, r := range right {
		all += r
	}
	if s.Every {
		return all > 0 && all == len(right)
	}
	return all > 0
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
func (v *Verifier) headersToKeep(f scheme.Fields) (http.Header, error) {
	kept := http.Header{}
	size := 0
	for _, name := range v.keptHeaders {
		for _, value := range f.Header[name] {
			if size += len(name) + len(value); len(value) > received.MaxField || size > maxKeptBytes {
				return nil, scheme.Malformed(name, "is too long to be kept")
			}
			if !received.Printable(strings.ReplaceAll(value, "\t", " ")) {
				return nil, scheme.Malformed(name, "has bytes that are not printable ASCII")
			}
			kept[name] = append(kept[name], value)
		}
	}
	return kept, nil
}

// validType reports whether s can be an event's type. It rejects text that should not be in a log.
func validType(s string) bool {
	return len(s) <= 255 &&
		utf8.ValidString(s) &&
		strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}
