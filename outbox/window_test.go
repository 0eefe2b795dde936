package outbox_test

import (
	"fmt"
	"testing"
	"time"
)

// A time that is as far away as one can write is far away, and not overflown.
func TestNotBeforeFarAway(t *testing.T) {
	r := newRig(t)
	sink := newScripted(accept)
	r.start(testConfig(sink))
	for _, y := range []int{2300, 2400, 2500, 2700, 2900, 3000, 5000, 9999} {
		c := charge(fmt.Sprint(y))
		c.NotBefore = time.Date(y, 12, 31, 0, 0, 0, 0, time.UTC)
		r.enqueue(c)
	}
	until(t, "all are parked", func() bool { return one[int](r, `select count(*) from onlyonce.calls where state = 'pending'`) == 0 })
	if got := sink.bodies(); got != "" {
		t.Errorf("sent before their time: %s", got)
	}
}
