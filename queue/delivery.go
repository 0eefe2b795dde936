package queue

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/hook"
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

// IDAlone is for [Config.Fingerprint]: a message with the id of an earlier one is its copy,
// whatever it contains.
func IDAlone(*Delivery) []byte { return nil }

// Why a delivery is parked as a message without an id.
var (
	errNoID     = errors.New("the message has no id")
	errBadID    = errors.New("the message's id is not 1 to 1,024 bytes of UTF-8 without NUL")
	errTenant   = errors.New("the message's tenant is not UTF-8 of at most 255 bytes without control characters")
	errConflict = errors.New("a message of this id was stored before, with another body")
)

const (
	maxID     = 1024
	maxTenant = 255
)

// check returns why a delivery cannot be identified.
func (d *Delivery) check() error {
	switch {
	case d.ID == "":
		return errNoID
	case len(d.ID) > maxID, !storable(d.ID):
		return errBadID
	case len(d.Tenant) > maxTenant, !utf8.ValidString(d.Tenant), strings.ContainsFunc(d.Tenant, unicode.IsControl):
		return errTenant
	}
	return nil
}

// identify calls Config.Identify, and then Config.Fingerprint. It returns the part of the message
// that is compared with its copies.
func (c *Config) identify(d *Delivery) (compared []byte, err error) {
	if c.Identify != nil {
		if err := apart("Config.Identify", func() error { return c.Identify(d) }); err != nil {
			return nil, err
		}
	}
	if err := d.check(); err != nil || c.Fingerprint == nil {
		return d.Body, err
	}
	err = apart("Config.Fingerprint", func() error { compared = c.Fingerprint(d); return nil })
	return compared, err
}

// apart calls a function of the program in a goroutine of its own. A panic is an error, and so is a
// Goexit, which would end the receiver (Q2).
func apart(field string, fn func() error) error {
	err := hook.Apart(func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v", p)
			}
		}()
		return fn()
	})
	if err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}
