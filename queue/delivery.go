package queue

import (
	"context"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onlyonce/onlyonce/consumer"
)

// Delivery is a message that a broker has delivered, until it is acknowledged.
type Delivery struct {
	// ID is the message's id: the same on each of its copies, and on those that its producer sends
	// again. 1 to 1,024 bytes of UTF-8 without NUL. A broker's adapter sets it as its documentation
	// says, and Config.Identify may set another one. A message without an id is parked.
	ID string
	// Tenant is the customer that the message belongs to, if customers choose ids themselves: at
	// most 255 bytes of UTF-8 without control characters. Defaults to one tenant.
	Tenant string
	// Key is the ordering key: messages of one key are handled in the order in which they were
	// stored. Defaults to nil, no order.
	Key []byte
	// Headers are the message's headers in the broker's order. Bytes of a name that are not UTF-8,
	// and NUL, are stored as %XX.
	Headers []consumer.Header
	// Body is the message's payload.
	Body []byte
	// Time is when the broker has stored the message: the same at each of its deliveries. Zero
	// means that it is not known. If the inbox may have forgotten ids of messages that were stored
	// then, the message may be a copy, and is parked as too-old (K9). Config.Identify may take the
	// time away, or set the one that the producer has put into all copies. The adapters of NATS and
	// SQS set it.
	Time time.Time
	// Redelivered is true if the broker knows that it has delivered the message before.
	Redelivered bool
	// Handle is the adapter's own, for example what it acknowledges with.
	Handle any
}

// Broker lends messages. An adapter implements it for one queue of one broker, for example package
// natsqueue or sqsqueue; queuetest.Conformance checks it. One goroutine at a time calls its
// methods.
//
// If a Broker has Validate() error, [New] adds the faults that it returns to its own. If it has
// End(), that is called whenever a session is over, and before [Queue.Receive] returns: it gives up
// what the session holds, for example its connection, so that another receiver gets it. If it has
// Retention() time.Duration, that says after Begin for how long the broker keeps a message, and a
// receiver ends if Config.CopiesWithin is shorter. If it has Anew() (oldest time.Time, why string),
// that says after Begin whether the broker is about to deliver again what it may have delivered
// before, why, and since when it has the oldest of these messages. A receiver ends if the inbox may
// have forgotten its id. A zero time means that it is not. If it has Full(context.Context) (why
// string, err error), that says why the queue takes no more messages from its producers, and ""
// if it does. A receiver asks every few seconds, beside its calls of the other methods, and
// `onlyonce status` shows it.
type Broker interface {
	// Begin is called before the first Receive, and again after each error of Receive or Ack. It
	// makes sure that the broker can be reached, and that the queue is set up such that no message
	// is lost while the database is away. An error that wraps [ErrConfig] ends [Queue.Receive];
	// after any other one it is called again.
	//
	// With ordered it returns only when no delivery to another receiver, or to an earlier session,
	// is outstanding, and from then on Receive delivers in the broker's order or fails. A broker
	// that cannot do this returns an error that wraps [ErrConfig].
	Begin(ctx context.Context, ordered bool) error

	// Receive waits for messages, and returns at most so many. It returns none, without an error,
	// if none came within a few seconds or if ctx ends. All that it returns is acknowledged before
	// it is called again, or Begin is called first.
	Receive(ctx context.Context, most int) ([]*Delivery, error)

	// Ack acknowledges deliveries of the session. If it fails, or if an acknowledgement is lost
	// later, the broker delivers the messages again.
	Ack(ctx context.Context, deliveries []*Delivery) error
}

func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// storableHeaders returns the headers with names that can be stored.
func storableHeaders(all []consumer.Header) []consumer.Header {
	out := make([]consumer.Header, len(all))
	for i, h := range all {
		if !storable(h.Name) {
			h.Name = url.PathEscape(h.Name)
		}
		if h.Value == nil {
			h.Value = []byte{}
		}
		out[i] = h
	}
	return out
}

// Header returns the value of the first header of a name, or "".
func (d *Delivery) Header(name string) string {
	for _, h := range d.Headers {
		if h.Name == name {
			return string(h.Value)
		}
	}
	return ""
}
