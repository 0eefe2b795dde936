package outbox_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/onlyonce/onlyonce/outbox"
)

// readier is a sink that says how many calls may be under way.
type readier struct {
	*scripted
	limit, asked atomic.Int64
}

func (s *readier) Ready() int {
	s.asked.Add(1)
	return int(s.limit.Load())
}

// While a sink is not ready no row is picked: no attempt is counted, and no window begins. When it wants to try one
// call, it gets one at a time.
func TestRowsOfASinkThatIsNotReadyAreLeftAlone(t *testing.T) {
	r := newRig(t)
	var under, most atomic.Int64
	s := &readier{scripted: newScripted(func(context.Context, *outbox.Delivery) outbox.Result {
		most.Store(max(most.Load(), under.Add(1)))
		defer under.Add(-1)
		return outbox.Result{Outcome: outbox.Delivered}
	})}
	for i := range 5 {
		r.enqueue(charge(fmt.Sprint(i)))
	}
	relay := r.relay(testConfig(s))
	r.run(relay)
	until(t, "the sink is asked at each poll", func() bool { relay.Wake(); return s.asked.Load() > 20 })
	if n := one[int](r, `select count(*) from onlyonce.calls where state = 'pending' and attempts = 0 and first_attempt_at is null`); n != 5 || len(s.calls()) > 0 {
		t.Errorf("%d rows of 5 were left alone, %d calls", n, len(s.calls()))
	}
	s.limit.Store(1)
	r.states("delivered")
	if n := most.Load(); n != 1 || len(s.calls()) != 5 {
		t.Errorf("%d calls at once, %d calls", n, len(s.calls()))
	}
	s.limit.Store(1 << 40)
	r.enqueue(charge("5"), charge("6"))
	r.states("delivered")
}
