package webhook

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
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
	item intake.Item // as it is stored; its id is unique in the endpoint's scope
	keys claimKeys
}

// Entry implements intake.Entry.
func (i *incomingEvent) Entry() *intake.Item { return &i.item }

// newIncomingEvent prepares an event that was delivered, or that a reconciliation lists. ctx is its
// request's, for the trace.
func (ep *Endpoint) newIncomingEvent(ctx context.Context, e *Event, reconciled bool) (*incomingEvent, error) {
	e.Endpoint = ep.cfg.Name
	i := &incomingEvent{Event: e}
	item := &i.item
	item.ID = messageID(ep.cfg.Name, e)
	item.Headers = headersOf(e)
	item.Body = e.Body
	if err := ep.setTenant(e); err != nil {
		return nil, err
	}
	item.Tenant = e.Tenant
	item.Identify(Scope(ep.cfg.Name))
	item.Place = cmp.Or(item.Tenant, ep.cfg.Name)
	if reconciled { // a list renders bodies in its own way, and its ids are the sender's
		item.Fingerprint = dedupe.NoFingerprint
	}
	ep.identifyBody(i)
	item.Key = ep.orderingKey(e)
	trace := origin.Origin{TraceOf: ep.cfg.Trace}.TraceIn(ctx)
	item.Headers = append(item.Headers, traceHeaders(trace)...)
	item.Origin = &origin.Origin{
		Tenant: item.Tenant,
		Scope:  Scope(ep.cfg.Name),
		ID:     item.ID,
		Time:   time.Now(),
		Trace:  trace,
	}
	if ep.cfg.Mode == Inline {
		item.Origin.TraceOf = ep.cfg.Trace // of the context in which the handler enqueues
	}
	return i, nil
}

// orderingKey returns the event's ordering key, nil for none. The sender chose it, so it must not
// keep the event from being stored: one that is too long is replaced by its hash.
func (ep *Endpoint) orderingKey(e *Event) []byte {
	if ep.cfg.OrderingKey == nil {
		return nil
	}
	key := callOrEmpty(ep.cfg.OrderingKey, e)
	switch {
	case key == "":
		return nil
	case len(key) > maxKey:
		return hashedKey([]byte(key))
	}
	return []byte(key)
}

// traceHeaders are the headers of a stored event with the trace context of its request, so that the
// event's handler is a part of the request's trace.
func traceHeaders(trace string) (all []consumer.Header) {
	parent, state := codec.SplitTrace(trace)
	for _, h := range []consumer.Header{
		{Name: headerTraceparent, Value: []byte(parent)},
		{Name: headerTracestate, Value: []byte(state)},
	} {
		if len(h.Value) > 0 {
			all = append(all, h)
		}
	}
	return all
}

// hashedKey returns a hash that replaces an ordering key that is too long.
func hashedKey(key []byte) []byte { return fmt.Appendf(nil, "sha256:%x", sha256.Sum256(key)) }

// setTenant sets an event's tenant. With TenantSecrets it is the one whose secret has signed, or
// that a backfill names (W16).
func (ep *Endpoint) setTenant(e *Event) (err error) {
	switch {
	case ep.cfg.TenantSecrets != nil:
		return checkTenantName(e.Tenant)
	case ep.cfg.Tenant != nil:
		e.Tenant, err = tenantOf(ep.cfg.Tenant, e)
		return err
	}
	e.Tenant = ""
	return nil
}

// tenantOf calls Config.Tenant. There is no fallback: ids count within a tenant, so that under a
// wrong tenant an event would be taken for a copy and lost (W16).
func tenantOf(f func(*Event) string, e *Event) (name string, err error) {
	defer func() {
		if p := recover(); p != nil {
			name = ""
			err = fmt.Errorf("%w: it panicked: %v", ErrTenant, p)
		}
	}()
	name = f(e)
	return name, validTenant(name)
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
	m := &consumer.Message{
		Topic:       Topic(ep.cfg.Name),
		Offset:      -1,
		Key:         i.item.Key,
		Value:       i.Body,
		Headers:     i.item.Headers,
		Time:        time.Now(),
		LeaderEpoch: -1,
		Attempt:     1,
	}
	claimed.Set(m, i.item.Tenant, i.item.ID)
	return m
}
