package webhook

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/claimed"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/intake"
	"github.com/onlyonce/onlyonce/internal/origin"
)

// messageID is the id under which an event is claimed. The name of the endpoint has no slash, and
// neither has the provider's.
func messageID(endpoint string, e *Event) string { return endpoint + "/" + e.Provider + "/" + e.ID }

// incomingEvent is an event on its way into the database.
type incomingEvent struct {
	*Event
	event intake.Event // as it is stored; its id is unique in the endpoint's scope

	digest []byte // of the body; nil if copies are recognized by the id
}

// newIncomingEvent prepares an event that was delivered, or that a reconciliation lists.
func (ep *Endpoint) newIncomingEvent(e *Event, reconciled bool) (*incomingEvent, error) {
	e.Endpoint = ep.cfg.Name
	i := &incomingEvent{Event: e, event: intake.Event{ID: messageID(ep.cfg.Name, e), Headers: headersOf(e), Body: e.Body}}
	if ep.cfg.Tenant != nil {
		var err error
		if i.event.Tenant, err = tenantOf(ep.cfg.Tenant, e); err != nil {
			return nil, err
		}
	}
	i.event.Identify(Scope(ep.cfg.Name))
	if !i.IDSigned && !reconciled && !ep.cfg.verifier.scheme.Repeats {
		sum := sha256.Sum256(i.Body)
		if i.digest = sum[:]; i.signed != nil {
			i.digest = i.signed
		}
	}
	if ep.cfg.OrderingKey != nil {
		switch key := callOrEmpty(ep.cfg.OrderingKey, e); {
		case len(key) > maxKey: // the sender chose it: it must not keep the event from being stored
			i.event.Key = hashedKey([]byte(key))
		case key != "":
			i.event.Key = []byte(key)
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
			i.event.Headers = append(i.event.Headers, h)
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

// inlineMessage returns the event as an inline handler gets it.
func (ep *Endpoint) inlineMessage(i *incomingEvent) *consumer.Message {
	m := &consumer.Message{Topic: Topic(ep.cfg.Name), Offset: -1, Key: i.event.Key, Value: i.Body, Headers: i.event.Headers, Time: time.Now(), LeaderEpoch: -1,
		Attempt: 1}
	claimed.Set(m, i.event.Tenant, i.event.ID)
	return m
}
