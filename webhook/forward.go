package webhook

import (
	"context"
	"errors"
	"maps"
	"net/http"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/outbox"
)

// Forward has each new event sent on through the outbox, under a key that derives from the event's id: the same however often it
// is delivered here, so that a consumer of the topic that takes it for the message's id applies it once.
//
// The call has the event's bytes as its body, its kept headers, and Webhook-Provider, Webhook-Event-Id and Webhook-Event-Type.
type Forward struct {
	// Sink is the relay's sink, a kafkasink for one. Required.
	Sink string
	// Target is where it goes, as the sink wants it: "/payments", a topic. Required.
	Target string
	// Key makes the target of a kafkasink end in ?key= and the event's ordering key, so that events of one key stay in one partition; and it
	// makes it the call's ordering key, so that they are sent one after another.
	Key bool
}

func (f *Forward) faults() (faults []error) {
	if f.Sink == "" {
		faults = append(faults, errors.New("Sink must not be empty"))
	}
	if f.Target == "" {
		faults = append(faults, errors.New("Target must not be empty"))
	}
	return faults
}

// enqueue writes the call in the receiver's transaction.
func (f *Forward) enqueue(ctx context.Context, tx consumer.Tx, i *item) error {
	c := outbox.Call{Sink: f.Sink, Name: "forward", Target: f.Target, Header: maps.Clone(i.Header), Body: i.Body}
	if c.Header == nil {
		c.Header = http.Header{}
	}
	c.Header.Set("Webhook-Provider", i.Provider)
	c.Header.Set("Webhook-Event-Id", i.ID)
	if printable(i.Type) && i.Type != "" {
		c.Header.Set("Webhook-Event-Type", i.Type)
	}
	if f.Key && i.key != nil {
		c.Target += "?key=" + escape(i.key)
		c.OrderingKey = string(i.key)
	}
	return outbox.Enqueue(ctx, tx, c)
}

// escape is percent-encoding of every byte that is not unreserved (RFC 3986 section 2.3): it is the same for any key.
func escape(key []byte) string {
	const digits = "0123456789ABCDEF"
	out := make([]byte, 0, len(key))
	for _, c := range key {
		if c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '-' || c == '.' || c == '_' || c == '~' {
			out = append(out, c)
			continue
		}
		out = append(out, '%', digits[c>>4], digits[c&15])
	}
	return string(out)
}
