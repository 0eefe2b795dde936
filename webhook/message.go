package webhook

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/claimed"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/parked"
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

	// The trace context of the request, if Config.Trace is set. They are none of the event's.
	headerTraceparent = "traceparent"
	headerTracestate  = "tracestate"
)

// ErrNotEvent means that the message does not come from an endpoint.
var ErrNotEvent = errors.New("webhook: the message is not an event of an endpoint")

// Topic returns the stream of an endpoint, for example "webhook.stripe".
func Topic(endpoint string) string { return names.WebhookStream(endpoint) }

// Scope returns the scope of an endpoint's claimed ids, and of the calls that an inline handler
// enqueues. A consumer of the endpoint under this scope gives its calls the same keys.
func Scope(endpoint string) string { return names.WebhookScope(endpoint) }

// EventOf returns the event of a message. Use it in a consumer's handler or in an inline one. The
// error is [consumer.ErrSealed] if its body is sealed.
func EventOf(m *consumer.Message) (*Event, error) {
	e := &Event{Tenant: m.Tenant(), Header: http.Header{}, Body: m.Value}
	if endpoint, ok := strings.CutPrefix(m.Topic, Topic("")); ok {
		e.Endpoint = endpoint
	}
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
		case headerTraceparent, headerTracestate:
		case parked.HeaderSealed:
			return nil, consumer.ErrSealed
		default:
			e.Header[h.Name] = append(e.Header[h.Name], v)
		}
	}
	if e.Provider == "" || e.ID == "" {
		return nil, ErrNotEvent
	}
	return e, nil
}

// Message returns the event as a handler gets it from an endpoint, for tests of the handler; ID and
// Provider must be set. It is in the endpoint's stream, under the id that the endpoint gives it.
// In a test with package onlyoncetest:
//
//	paid := &webhook.Event{Provider: "stripe", ID: "evt_1", Type: "invoice.paid", Body: body}
//	message := onlyoncetest.FromMessage(paid.Message("stripe"))
//	got := onlyoncetest.Apply(t, pool, consumer.HandlerFunc(handle), consumer.Config{}, message)
func (e *Event) Message(endpoint string) *consumer.Message {
	m := &consumer.Message{
		Topic:       Topic(endpoint),
		Offset:      -1,
		Value:       e.Body,
		Headers:     headersOf(e),
		LeaderEpoch: -1,
		Attempt:     1,
	}
	claimed.Set(m, e.Tenant, messageID(endpoint, e))
	return m
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
