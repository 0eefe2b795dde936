package webhook

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/outbox"
)

// Forward has each new event sent on through the outbox, under a key that derives from the event's id: the same however often it
// is delivered here, so that a consumer of the topic that takes it for the message's id applies it once.
//
// The call has the event's bytes as its body, its kept headers, and Webhook-Provider, Webhook-Event-Id and Webhook-Event-Type. The last is left out of the call
// if the type is no value of a header (it begins or ends with a space, say). An event of which no call can be made (its kept headers
// and these have more than 16 KiB together) is set aside whole: outcome [Unforwarded].
type Forward struct {
	// Sink is the relay's sink, a kafkasink for one. Required.
	Sink string
	// Target is where it goes, as the sink wants it: "/payments", a topic. Required.
	Target string
	// Key makes the target of a kafkasink end in ?key= and the event's ordering key, so that events of one key stay in one partition; and it
	// makes it the call's ordering key, so that they are sent one after another. A key that would make the target longer than 2 KiB is replaced
	// by "sha256:" and its hash there.
	Key bool
}

// faults are those that the outbox would find in the call of every event.
func (f *Forward) faults(v *Verifier) (faults []error) {
	if f.Sink == "" {
		faults = append(faults, errors.New("Sink must not be empty"))
	}
	longest := f.Target
	if f.Key {
		longest += keyParameter + strings.Repeat("x", len(escape(hashed(nil))))
	}
	if f.Target == "" {
		faults = append(faults, errors.New("Target must not be empty"))
	} else if err := frozen.Target(longest); err != nil {
		faults = append(faults, fmt.Errorf("Target: %w", err))
	}
	if v == nil {
		return faults
	}
	if v.maxBody > outbox.MaxBody {
		faults = append(faults, fmt.Errorf("the verifier's MaxBody, %d, must not be above that of a call, %d", v.maxBody, outbox.MaxBody))
	}
	if err := frozen.Value(headerForwarded+"Provider", v.scheme.Name); err != nil {
		faults = append(faults, fmt.Errorf("the provider's name: %w", err))
	}
	for _, name := range v.keep {
		if err := frozen.Name(name); err != nil {
			faults = append(faults, fmt.Errorf("the verifier's KeepHeaders: %w", err))
		}
	}
	return faults
}

const (
	keyParameter    = "?key="
	headerForwarded = "Webhook-"
)

// enqueue writes the call in the receiver's transaction. The event was signed and will not come otherwise, so what it holds is fitted into a call where that loses
// nothing of the event; see (*attempt).fill for the rest.
func (f *Forward) enqueue(ctx context.Context, tx consumer.Tx, i *item) error {
	c := outbox.Call{Sink: f.Sink, Name: "forward", Target: f.Target, Header: maps.Clone(i.Header), Body: i.Body}
	if c.Header == nil {
		c.Header = http.Header{}
	}
	c.Header.Set(headerForwarded+"Provider", i.Provider)
	c.Header.Set(headerForwarded+"Event-Id", i.ID)
	if i.Type != "" && frozen.Value(headerForwarded+"Event-Type", i.Type) == nil {
		c.Header.Set(headerForwarded+"Event-Type", i.Type)
	}
	if f.Key && i.key != nil {
		key := escape(i.key)
		if len(c.Target)+len(keyParameter)+len(key) > frozen.MaxTarget {
			key = escape(hashed(i.key))
		}
		c.Target += keyParameter + key
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
