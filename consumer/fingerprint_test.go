package consumer_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
)

// K1: a producer renders its message anew, with another time of sending. What is compared is the
// program's choice.
func TestK1WhatIsCompared(t *testing.T) {
	beforeSent := func(m *consumer.Message) []byte {
		part, _, _ := bytes.Cut(m.Value, []byte(" sent "))
		return part
	}
	for name, c := range map[string]struct {
		fingerprint func(*consumer.Message) []byte
		parked      string
	}{
		"the value":    {nil, "1 conflict 2 conflict"},
		"a part":       {beforeSent, "2 conflict"},
		"the id alone": {consumer.IDAlone, ""},
	} {
		for _, first := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", claim first ", first), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 1)
				r.log.Append(0, "order 17 sent 12:00", id("17"))
				r.log.Append(0, "order 17 sent 12:05", id("17")) // a copy
				r.log.Append(0, "order 18 sent 12:06", id("17")) // another message under its id
				cfg := testConfig()
				cfg.Fingerprint = c.fingerprint
				cfg.ClaimFirst = first
				stop := r.start(effect, cfg)
				r.reaches(0, 3)
				stop()
				r.once("order 17 sent 12:00")
				var parked string
				err := r.pool.QueryRow(
					t.Context(),
					`select coalesce(string_agg("offset" || ' ' || reason, ' ' order by "offset"), '') from onlyonce.parked`,
				).Scan(&parked)
				if err != nil || parked != c.parked {
					t.Errorf("parked %q, %v, want %q", parked, err, c.parked)
				}
			})
		}
	}
}

// K1: a parked message that is settled leaves the fingerprint that its copies have.
func TestK1FingerprintOfAParkedMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	cfg := testConfig()
	cfg.Fingerprint = func(m *consumer.Message) []byte { return m.Value[:2] }
	h := &failing{times: map[string]int{"v-1": -1}}
	r.log.Append(0, "v-1", id("v"))
	stop := r.start(h.handle, cfg)
	r.reaches(0, 1)
	r.exec(`delete from onlyonce.inbox`)
	h.heal()
	r.exec(`update onlyonce.parked set state = 'retrying', attempts = 0, next_attempt_at = clock_timestamp()`)
	until(t, "applied", func() bool { return r.count(`select count(*) from effects`) == 1 })
	r.log.Append(0, "v-2", id("v"))
	r.reaches(0, 2)
	stop()
	r.once("v-1")
	if n := r.count(`select count(*) from onlyonce.parked where reason = 'conflict'`); n != 0 {
		t.Errorf("%d conflicts", n)
	}
}
