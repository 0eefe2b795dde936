package queue

import (
	"errors"
	"runtime"
	"strings"
	"testing"
)

// What identifies a delivery: what the broker has set, or else Identify; and what its copies are
// compared by. Without an id Fingerprint is not asked, and a function of the program that panics
// parks the message (Q2).
func TestQ2WhatIdentifiesADelivery(t *testing.T) {
	t.Parallel()
	failed := errors.New("no header")
	sets := func(id, tenant string) func(*Delivery) error {
		return func(d *Delivery) error { d.ID = id; d.Tenant = tenant; return nil }
	}
	panics := func(*Delivery) error { panic("oh") }
	partPanics := func(*Delivery) []byte { panic("oh") }
	partEnds := func(*Delivery) []byte { runtime.Goexit(); return nil }
	compared := func(d *Delivery) []byte { return []byte("part of " + d.ID) }
	for name, c := range map[string]struct {
		id   string
		cfg  Config
		want string
		err  error
		says string
	}{
		"the broker's":             {id: "1", want: "body"},
		"a part":                   {id: "1", cfg: Config{Fingerprint: compared}, want: "part of 1"},
		"Identify's":               {id: "1", cfg: Config{Identify: sets("2", "a"), Fingerprint: compared}, want: "part of 2"},
		"none":                     {err: errNoID},
		"none, and a part":         {cfg: Config{Fingerprint: compared}, err: errNoID},
		"the longest":              {cfg: Config{Identify: sets(strings.Repeat("a", 1024), strings.Repeat("t", 255))}, want: "body"},
		"too long":                 {id: strings.Repeat("a", 1025), err: errBadID},
		"no UTF-8":                 {id: "\xff", cfg: Config{Fingerprint: compared}, err: errBadID},
		"with NUL":                 {id: "a\x00", err: errBadID},
		"tenant too long":          {cfg: Config{Identify: sets("1", strings.Repeat("t", 256))}, err: errTenant},
		"tenant that is no UTF-8":  {cfg: Config{Identify: sets("1", "\xff")}, err: errTenant},
		"tenant of two lines":      {cfg: Config{Identify: sets("1", "a\nb")}, err: errTenant},
		"Identify fails":           {id: "1", cfg: Config{Identify: func(*Delivery) error { return failed }}, err: failed},
		"Identify panics":          {id: "1", cfg: Config{Identify: panics}, says: "Config.Identify: panic: oh"},
		"Fingerprint panics":       {id: "1", cfg: Config{Fingerprint: partPanics}, says: "Config.Fingerprint: panic: oh"},
		"Fingerprint ends itself":  {id: "1", cfg: Config{Fingerprint: partEnds}, says: "Config.Fingerprint: "},
		"Identify takes it away":   {id: "1", cfg: Config{Identify: sets("", "")}, err: errNoID},
		"a part that is not there": {id: "1", cfg: Config{Fingerprint: func(*Delivery) []byte { return nil }}},
	} {
		d := &Delivery{ID: c.id, Body: []byte("body")}
		got, err := c.cfg.identify(d)
		switch {
		case c.says != "":
			if err == nil || !strings.HasPrefix(err.Error(), c.says) {
				t.Errorf("%s: %v, want %s", name, err, c.says)
			}
		case !errors.Is(err, c.err):
			t.Errorf("%s: %v, want %v", name, err, c.err)
		case err == nil && string(got) != c.want:
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
