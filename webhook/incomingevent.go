package webhook

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/claimed"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/internal/origin"
)

// messageID is the id under which an event is claimed. The name of the endpoint has no slash, and
// neither has the provider's.
func messageID(endpoint string, e *Event) string { return endpoint + "/" + e.Provider + "/" + e.ID }

// incomingEvent is an event on its way into the database.
type incomingEvent struct {
	*Event
	tenant      string
	messageID   string // unique in the endpoint's scope
	orderingKey []byte // nil for none
	headers     []consumer.Header

	stored        []byte // the body as it is stored
	storedHeaders []consumer.Header

	// These are made once for all attempts, because two of them read the whole body.
	hash        pgtype.UUID // hash of the dedupe key
	fingerprint int64
	digest      []byte // of the body; nil if copies are recognized by the id

	reconciled bool // listed by a reconciliation, not delivered
}

// newIncomingEvent prepares an event that was delivered, or that a reconciliation lists.
func (ep *Endpoint) newIncomingEvent(e *Event, reconciled bool) (*incomingEvent, error) {
	e.Endpoint = ep.cfg.Name
	i := &incomingEvent{Event: e, messageID: messageID(ep.cfg.Name, e), headers: headersOf(e), reconciled: reconciled}
	if ep.cfg.Tenant != nil {
		var err error
		if i.tenant, err = tenantOf(ep.cfg.Tenant, e); err != nil {
			return nil, err
		}
	}
	i.hash = pgtype.UUID{Bytes: dedupe.Key{Tenant: i.tenant, Scope: Scope(ep.cfg.Name), ID: i.messageID}.Hash(), Valid: true}
	i.fingerprint = dedupe.FingerprintOf(i.Body).Int64()
	if !i.IDSigned && !i.reconciled && !ep.cfg.verifier.scheme.Repeats {
		sum := sha256.Sum256(i.Body)
		if i.digest = sum[:]; i.signed != nil {
			i.digest = i.signed
		}
	}
	if ep.cfg.OrderingKey != nil {
		switch key := callOrEmpty(ep.cfg.OrderingKey, e); {
		case len(key) > maxKey: // the sender chose it: it must not keep the event from being stored
			i.orderingKey = hashedKey([]byte(key))
		case key != "":
			i.orderingKey = []byte(key)
		}
	}
	return i, nil
}

// keepTrace adds the trace context of the request to the stored headers, so that the event's
// handler is a part of the request's trace.
func (i *incomingEvent) keepTrace(ctx context.Context, traceOf func(context.Context) string) {
	parent, state := codec.SplitTrace(origin.Origin{TraceOf: traceOf}.TraceIn(ctx))
	for _, h := range []consumer.Header{{Name: headerTraceparent, Value: []byte(parent)}, {Name: headerTracestate, Value: []byte(state)}} {
		if len(h.Value) > 0 {
			i.headers = append(i.headers, h)
		}
	}
}

// hashedKey returns a hash that replaces an ordering key that is too long.
func hashedKey(key []byte) []byte { return fmt.Appendf(nil, "sha256:%x", sha256.Sum256(key)) }

// tenantOf calls Config.Tenant. There is no fallback: ids count within a tenant, so that under a
// wrong tenant an event would be taken for a copy and lost (W16).
func tenantOf(f func(*Event) string, e *Event) (name string, err error) {
	defer func() {
		if p := recover(); p != nil {
			name, err = "", fmt.Errorf("%w: it panicked: %v", ErrTenant, p)
		}
	}()
	name = f(e)
	switch {
	case len(name) > maxTenant:
		return "", fmt.Errorf("%w: the name has %d bytes, more than %d", ErrTenant, len(name), maxTenant)
	case !utf8.ValidString(name) || strings.IndexFunc(name, unicode.IsControl) >= 0:
		return "", fmt.Errorf("%w: the name must be UTF-8 without control characters", ErrTenant)
	}
	return name, nil
}

const maxTenant = 255 // bytes, as of a call's

// maxKey is the longest ordering key that a call may have.
const maxKey = 1024

// callOrEmpty calls the user's function for an ordering key. If it panics, the key is empty: that
// must not keep an event from being stored.
func callOrEmpty(f func(*Event) string, e *Event) (s string) {
	defer func() {
		if recover() != nil {
			s = ""
		}
	}()
	return f(e)
}

// streamEvent returns the event as the log stores it.
func (ep *Endpoint) streamEvent(i *incomingEvent) eventsource.Event {
	return eventsource.Event{Topic: Topic(ep.cfg.Name), Tenant: i.tenant, ID: i.messageID, Key: i.orderingKey, Headers: i.storedHeaders, Body: i.stored}
}

// inlineMessage returns the event as an inline handler gets it.
func (ep *Endpoint) inlineMessage(i *incomingEvent) *consumer.Message {
	m := &consumer.Message{Topic: Topic(ep.cfg.Name), Offset: -1, Key: i.orderingKey, Value: i.Body, Headers: i.headers, Time: time.Now(), LeaderEpoch: -1,
		Attempt: 1}
	claimed.Set(m, i.tenant, i.messageID)
	return m
}

// headerColumns returns the headers in the form of a parked row.
func (i *incomingEvent) headerColumns() (names, values [][]byte) {
	names, values = make([][]byte, len(i.storedHeaders)), make([][]byte, len(i.storedHeaders))
	for n, h := range i.storedHeaders {
		names[n], values[n] = []byte(h.Name), h.Value
	}
	return names, values
}
