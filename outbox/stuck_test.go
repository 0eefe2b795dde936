package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/outbox"
)

// stuckSink is a sink whose Send ignores its context: a call with the body "stuck" returns when the
// gate opens.
func stuckSink(name string, g *gate) *scripted {
	s := newScripted(func(_ context.Context, a *outbox.Attempt) outbox.Result {
		if string(a.Body) == "stuck" {
			g.pass(a)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	s.name = name
	s.limits.Timeout = 50 * time.Millisecond
	return s
}

// stuckRelay returns a relay with two slots, whose sink does not return stuck calls until the gate
// is released.
func (r *rig) stuckRelay() (*gate, *scripted, *outbox.Relay) {
	g := r.gate()
	sink := stuckSink("payments", g)
	cfg := testConfig(sink)
	cfg.Concurrency = 2
	relay := r.relay(cfg)
	relay.SetJoinGrace(10 * time.Millisecond)
	return g, sink, relay
}

func stuckCall(sink string, i int) outbox.Call {
	return outbox.Call{Sink: sink, Name: "hook", Scope: "stuck", ID: fmt.Sprint("stuck", i), Body: []byte("stuck")}
}

func otherCall(sink string, i int) outbox.Call {
	return outbox.Call{Sink: sink, Name: "hook", Scope: "stuck", ID: fmt.Sprint("other", i), Body: []byte("other")}
}

// Calls that do not return give their slots to others once their time is over. Healthy names them.
// They may not start any more, are not made again beside themselves, and are settled if they return
// after all.
func TestO18CallThatDoesNotReturnGivesItsSlotUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g, sink, relay := r.stuckRelay()
	r.enqueue(stuckCall("payments", 1), stuckCall("payments", 2))
	r.run(relay)
	first := g.wait()
	second := g.wait()
	for i := range 20 {
		r.enqueue(otherCall("payments", i))
	}
	until(t, "the other calls are delivered", func() bool {
		return one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`) == 20
	})
	err := relay.Healthy()
	good := err != nil &&
		strings.Contains(err.Error(), "payments") &&
		strings.Contains(err.Error(), first.Key) &&
		strings.Contains(err.Error(), second.Key)
	if !good {
		t.Errorf("Healthy: %v, want an error that names the sink and both calls", err)
	}
	if err := first.MayStart(); !errors.Is(err, outbox.ErrNotStarted) {
		t.Errorf("a call that was given up may start: %v", err)
	}
	r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp() where settled_at is null`)
	r.enqueue(otherCall("payments", 20))
	until(t, "another call is delivered", func() bool {
		return one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`) == 21
	})
	g.release()
	r.states("delivered")
	if n := len(sink.calls()); n != 23 {
		t.Errorf("%d attempts at 23 calls", n)
	}
	until(t, "the relay is healthy", func() bool { return relay.Healthy() == nil })
}

// What a sink does not return bounds how many calls of a tenant, or without one, are made.
func TestO18CallsThatDoNotReturnAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g, sink, relay := r.stuckRelay()
	for i := range 20 {
		c := stuckCall("payments", i)
		c.Tenant = "bad"
		r.enqueue(c)
	}
	r.run(relay)
	g.wait()
	g.wait()
	for i := range 20 {
		r.enqueue(otherCall("payments", i))
		until(t, "another call is delivered", func() bool {
			return one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`) == i+1
		})
	}
	if n := sentOf(sink, "bad"); n != 2 {
		t.Errorf("%d calls of the tenant were made, of 2 slots", n)
	}
	g.release()
	r.states("delivered")
}

// Another relay that starts gets its lanes, also those of calls that do not return, and makes these
// calls under their keys. The first one goes on with all its sinks.
func TestO18CallThatDoesNotReturnEndsNoRelay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	start := func() (*outbox.Relay, *scripted, *running) {
		sink := stuckSink("payments", g)
		other := newScripted(accept)
		other.name = "mail"
		cfg := testConfig(sink, other)
		cfg.DrainTimeout = 10 * time.Millisecond
		cfg.LeaseTTL = 10 * time.Minute // longer than the test waits
		relay := r.relay(cfg)
		relay.SetJoinGrace(10 * time.Millisecond)
		return relay, sink, r.run(relay)
	}
	const stuck = 12 // above the slots, and below twice as many
	for i := range stuck {
		r.enqueue(stuckCall("payments", i))
	}
	relay, _, first := start()
	for range stuck {
		g.wait()
	}
	until(t, "the calls are given up", func() bool { return relay.Healthy() != nil && strings.Contains(relay.Healthy().Error(), "9 more") })
	_, second, _ := start()
	until(t, "the second relay has half of the lanes", func() bool {
		return one[int](
			r,
			`select count(*) from (select nonce from onlyonce.leases where name like 'relay/payments/%' and nonce is not null) l`,
		) == 16 &&
			r.gave(8)
	})
	r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp() where settled_at is null`)
	until(t, "the second relay makes the calls of its lanes again", func() bool { return len(second.calls()) >= 1 })
	for i := range 40 {
		r.enqueue(otherCall("payments", i), otherCall("mail", i))
	}
	until(t, "the calls of both sinks are delivered", func() bool {
		return one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`) == 80
	})
	select {
	case err := <-first.ended:
		t.Fatalf("the first relay has ended: %v", err)
	default:
	}
	g.release()
	r.states("delivered")
}

// gave reports whether relays of this process have given back n lanes of payments in order.
func (r *rig) gave(n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	given := 0
	for _, c := range r.leases {
		if c.Sink == "payments" && !c.Held && c.Err == nil {
			given++
		}
	}
	return given >= n
}
