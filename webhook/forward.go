package webhook

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"strings"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/seal"
)

// Forward sends each new event on through the outbox. The call's key derives from the event's id,
// and is the same at each delivery. So a consumer of the topic that uses the key as the message's
// id applies the event once.
//
// The call's body is the event's bytes. Its headers are the kept ones, and Webhook-Provider,
// Webhook-Event-Id and Webhook-Event-Type. The last is left out if the type is not valid in a
// header, for example if it begins with a space. If an event cannot become a call, for example
// because its headers have more than 16 KiB together, the endpoint parks it whole, with the outcome
// [Unforwarded].
type Forward struct {
	// Sink is the name of the relay's sink, for example of a kafkasink. Required.
	Sink string
	// Target is where the call goes, in the sink's form, for example "/payments" or a topic.
	// Required.
	Target string
	// Key appends ?key= and the event's ordering key to the target of a kafkasink, so events of one
	// key stay in one partition. The key also becomes the call's ordering key, so the relay sends
	// them one after another. If the key would make the target longer than 2 KiB, the target has
	// "sha256:" and its hash instead. Defaults to false.
	KeyInTarget bool
}

// check notes the faults that the outbox would find in the call of every event (W15).
func (f *Forward) check(l *fields.List, v *Verifier) {
	if f.Sink == "" {
		l.Add("Forward.Sink", "must not be empty")
	}
	longest := f.Target
	if f.KeyInTarget {
		longest += keyParam + strings.Repeat("x", len(percentEncode(hashedKey(nil))))
	}
	if f.Target == "" {
		l.Add("Forward.Target", "must not be empty")
	} else if err := frozen.Target(longest); err != nil {
		l.Add("Forward.Target", "%v", err)
	}
	if v == nil {
		return
	}
	if v.maxBody > outbox.MaxBody {
		l.Add("MaxBody",
			"is %d, by default the longest body that the sender sends: with Forward set at most %d, the "+
				"longest body of a call; longer events get 413",
			v.maxBody,
			outbox.MaxBody)
	}
	if err := frozen.Value(headerForwarded+"Provider", v.scheme.Name); err != nil {
		l.Add("Forward", "the provider's name: %v", err)
	}
	for _, name := range v.keptHeaders {
		if err := frozen.Name(name); err != nil {
			l.Add("Forward", "KeepHeaders: %v", err)
		}
	}
}

const (
	keyParam        = "?key="
	headerForwarded = "Webhook-"
)

// enqueue writes the call in the endpoint's transaction. The sender will not change an event, so
// what does not fit into a call is left out or shortened, if that loses nothing of the event. See
// way.Refuses for events of which no call can be made (W15).
func (f *Forward) enqueue(ctx context.Context, tx consumer.Tx, i *incomingEvent, sealer *seal.Sealer) error {
	c := outbox.Call{Sink: f.Sink, Name: "forward", Target: f.Target, Header: maps.Clone(i.Header), Body: i.Body}
	if sealer != nil {
		c.Sealer = sealer
	}
	if c.Header == nil {
		c.Header = http.Header{}
	}
	c.Header.Set(headerForwarded+"Provider", i.Provider)
	c.Header.Set(headerForwarded+"Event-Id", i.ID)
	if i.Type != "" && frozen.Value(headerForwarded+"Event-Type", i.Type) == nil {
		c.Header.Set(headerForwarded+"Event-Type", i.Type)
	}
	if f.KeyInTarget && i.item.Key != nil {
		key := percentEncode(i.item.Key)
		if len(c.Target)+len(keyParam)+len(key) > frozen.MaxTarget {
			key = percentEncode(hashedKey(i.item.Key))
		}
		c.Target += keyParam + key
		c.OrderingKey = string(i.item.Key)
	}
	return outbox.Enqueue(ctx, tx, c)
}

// percentEncode percent-encodes every byte that is not unreserved (RFC 3986 section 2.3): equal
// keys get equal texts.
func percentEncode(key []byte) string {
	return strings.ReplaceAll(url.QueryEscape(string(key)), "+", "%20")
}
