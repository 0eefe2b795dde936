package queue_test

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/queue"
)

// Q2: a producer renders its message anew, with another address of the object that it has uploaded
// again. What is compared is the program's choice.
func TestQ2WhatIsCompared(t *testing.T) {
	t.Parallel()
	before := func(d *queue.Delivery) []byte {
		part, _, _ := bytes.Cut(d.Body, []byte(" object "))
		return part
	}
	for name, c := range map[string]struct {
		fingerprint func(*queue.Delivery) []byte
		want        queue.StoredEvent
	}{
		"the body":     {nil, queue.StoredEvent{Fresh: 1, Parked: 3}},
		"a part":       {before, queue.StoredEvent{Fresh: 1, Copies: 2, Parked: 1}},
		"the id alone": {queue.IDAlone, queue.StoredEvent{Fresh: 1, Copies: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.receives(func(c2 *queue.Config) { c2.Fingerprint = c.fingerprint })
			r.broker.Publish(message("17", "order 17 object a"))
			r.broker.Publish(message("17", "order 17 object b")) // a copy
			r.broker.Publish(message("17", "order 18 object c")) // another message under its id
			r.until("the first ones are acknowledged", func() bool { return r.broker.Left() == 0 })
			r.broker.Publish(message("17", "order 18 object d")) // and its copy
			r.until("all are acknowledged", func() bool { return r.broker.Left() == 0 })
			if got := r.stored(); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

// Q2: a Config.Fingerprint that panics, or ends its goroutine, has the message parked.
func TestQ2FingerprintThatFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.receives(func(c *queue.Config) {
		c.Fingerprint = func(d *queue.Delivery) []byte {
			if d.ID == "exits" {
				runtime.Goexit()
			}
			return d.Body[:100]
		}
	})
	r.broker.Publish(message("panics"), message("exits"))
	r.until("they are acknowledged", func() bool { return r.broker.Left() == 0 })
	got := one[string](r, `select string_agg(reason || ': ' || error, E'\n' order by error) from onlyonce.parked`)
	if strings.Count(got, "no-key: Config.Fingerprint: ") != 2 || !strings.Contains(got, "panic: ") || !strings.Contains(got, "Goexit") {
		t.Error(got)
	}
}
