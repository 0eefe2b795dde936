package queue

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/onlyonce/onlyonce/internal/hook"
)

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
