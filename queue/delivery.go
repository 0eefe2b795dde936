package queue

import (
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
