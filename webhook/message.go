package webhook

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/eventsource"
)

// Headers of a message that hold an event's fields besides its kept headers and its body. They are
// in lower case: a request's headers are in HTTP's canonical form, so that none of them can be
// mistaken for one of these.
const (
	headerPrefix   = "onlyonce-"
	headerProvider = headerPrefix + "provider"
	headerID       = headerPrefix + "id"
	headerSigned   = headerPrefix + "id-signed"
	headerType     = headerPrefix + "type"
	headerTime     = headerPrefix + "time"
)

// ErrNotEvent: the message was not stored or delivered by an endpoint.
var ErrNotEvent = errors.New("webhook: the message is no event of a receiver")

// Topic returns the stream of an endpoint, for example "webhook.stripe".
func Topic(endpoint string) string { return "webhook." + endpoint }

// Scope returns the scope in which an endpoint's ids are claimed, and to which the calls that an
// inline handler enqueues belong. A consumer of the endpoint under this scope gives its calls the
// same keys.
func Scope(endpoint string) string { return "webhook/" + endpoint }

// EventOf returns the event of a message. Use it in a consumer's handler or in an inline one.
func EventOf(m *consumer.Message) (*Event, error) {
	e := &Event{Header: http.Header{}, Body: m.Value}
	for _, h := range m.Headers {
		switch v := string(h.Value); h.Name {
		case headerProvider:
			e.Provider = v
		case headerID:
			e.ID = v
		case headerSigned:
			e.IDSigned = true
		case headerType:
			e.Type = v
		case headerTime:
			at, err := time.Parse(time.RFC3339Nano, v)
			if err != nil {
				return nil, errors.Join(ErrNotEvent, err)
			}
			e.Time = at
		default:
			e.Header[h.Name] = append(e.Header[h.Name], v)
		}
	}
	if e.Provider == "" || e.ID == "" {
		return nil, ErrNotEvent
	}
	return e, nil
}

// headersOf returns the headers from which EventOf reads the event.
func headersOf(e *Event) []consumer.Header {
	all := []consumer.Header{{Name: headerProvider, Value: []byte(e.Provider)}, {Name: headerID, Value: []byte(e.ID)}}
	add := func(name, value string) { all = append(all, consumer.Header{Name: name, Value: []byte(value)}) }
	if e.IDSigned {
		add(headerSigned, "true")
	}
	if e.Type != "" {
		add(headerType, e.Type)
	}
	if !e.Time.IsZero() {
		add(headerTime, e.Time.UTC().Format(time.RFC3339Nano))
	}
	for _, name := range slices.Sorted(maps.Keys(e.Header)) {
		for _, value := range e.Header[name] {
			add(name, value)
		}
	}
	return all
}

// item is an event on its way into the database.
type item struct {
	*Event
	tenant  string
	id      string // unique in the endpoint's scope
	key     []byte // ordering key, nil for none
	headers []consumer.Header

	// These are made once for all attempts, because two of them read the whole body.
	hash        pgtype.UUID // hash of the dedupe key
	fingerprint int64
	digest      []byte // of the body, if copies are recognized by it; nil if by the id

	reconciled bool
}

// item prepares an event that was delivered, or that a reconciliation lists.
func (r *Endpoint) item(e *Event, reconciled bool) (*item, error) {
	// The name of the endpoint has no slash, and neither has the provider's.
	i := &item{Event: e, id: r.cfg.Name + "/" + e.Provider + "/" + e.ID, headers: headersOf(e), reconciled: reconciled}
	if r.cfg.Tenant != nil {
		var err error
		if i.tenant, err = tenant(r.cfg.Tenant, e); err != nil {
			return nil, err
		}
	}
	i.hash = pgtype.UUID{Bytes: dedupe.Key{Tenant: i.tenant, Scope: Scope(r.cfg.Name), ID: i.id}.Hash(), Valid: true}
	i.fingerprint = dedupe.FingerprintOf(i.Body).Int64()
	if !i.IDSigned && !i.reconciled {
		sum := sha256.Sum256(i.Body)
		i.digest = sum[:]
	}
	if r.cfg.OrderingKey != nil {
		switch key := call(r.cfg.OrderingKey, e); {
		case len(key) > maxKey: // the sender chose it: it must not keep the event from being stored
			i.key = hashed([]byte(key))
		case key != "":
			i.key = []byte(key)
		}
	}
	return i, nil
}

// hashed returns a hash that replaces an ordering key that is too long.
func hashed(key []byte) []byte { return fmt.Appendf(nil, "sha256:%x", sha256.Sum256(key)) }

// tenant calls Config.Tenant. There is no fallback: ids count within a tenant, so that under a
// wrong tenant an event would be taken for a copy and lost.
func tenant(f func(*Event) string, e *Event) (name string, err error) {
	defer func() {
		if p := recover(); p != nil {
			name, err = "", fmt.Errorf("%w: it panicked: %v", ErrTenant, p)
		}
	}()
	name = f(e)
	switch {
	case len(name) > maxTenant:
		return "", fmt.Errorf("%w: it returned %d bytes, more than %d", ErrTenant, len(name), maxTenant)
	case !utf8.ValidString(name) || strings.IndexFunc(name, unicode.IsControl) >= 0:
		return "", fmt.Errorf("%w: it returned what is not UTF-8, or has control characters", ErrTenant)
	}
	return name, nil
}

const maxTenant = 255 // bytes, as of a call's

// maxKey is the longest ordering key that a call may have.
const maxKey = 1024

// call calls the user's function for an ordering key. If it panics, the key is empty: that must not
// keep an event from being stored.
func call(f func(*Event) string, e *Event) (s string) {
	defer func() {
		if recover() != nil {
			s = ""
		}
	}()
	return f(e)
}

// stored returns the event as the log stores it.
func (r *Endpoint) stored(i *item) eventsource.Event {
	return eventsource.Event{Topic: Topic(r.cfg.Name), Tenant: i.tenant, ID: i.id, Key: i.key, Headers: i.headers, Body: i.Body}
}

// message returns the event as an inline handler gets it.
func (r *Endpoint) message(i *item) *consumer.Message {
	return &consumer.Message{Topic: Topic(r.cfg.Name), Offset: -1, Key: i.key, Value: i.Body, Headers: i.headers, Time: time.Now(), LeaderEpoch: -1,
		EventTenant: i.tenant, EventID: i.id, Attempt: 1}
}
