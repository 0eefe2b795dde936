package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onlyonce/onlyonce/outbox"
)

// counted starts a relay that counts the lanes it holds.
func (r *rig) counted(cfg outbox.RelayConfig) (*running, *atomic.Int64) {
	r.t.Helper()
	var held atomic.Int64
	cfg.Hooks.Lease = func(c outbox.LeaseEvent) {
		if c.Held {
			held.Add(1)
		} else {
			held.Add(-1)
		}
	}
	relay, err := outbox.NewRelay(r.pool, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.run(relay), &held
}

// O5: lanes are shared evenly when relays come and go. Relays hand them over and do not wait for
// leases to end. Meanwhile each call is made once, and those of a key in order.
func TestO5LanesAreSharedOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	cfg := testConfig(sink)
	n := 0
	work := func() {
		for range 20 {
			n++
			r.enqueue(charge(fmt.Sprint("free", n)), keyed("a-", n), keyed("b-", n))
		}
	}
	a, ofA := r.counted(cfg)
	until(t, "one has all", func() bool { return ofA.Load() == 16 })
	work()
	b, ofB := r.counted(cfg)
	work()
	until(t, "two have half each", func() bool { return ofA.Load() == 8 && ofB.Load() == 8 })
	c, ofC := r.counted(cfg)
	work()
	until(t, "three have a third each", func() bool {
		all := []int64{ofA.Load(), ofB.Load(), ofC.Load()}
		slices.Sort(all)
		return all[0] >= 4 && all[2] <= 6 && all[0]+all[1]+all[2] == 16
	})
	a.stop()
	b.stop()
	work()
	until(t, "the last one has all", func() bool { return ofC.Load() == 16 })
	r.states("delivered")
	c.stop()
	seen := map[string]int{}
	for _, d := range sink.calls() {
		seen[d.Key]++
	}
	if len(seen) != 3*n || len(sink.calls()) != 3*n {
		t.Errorf("%d calls of %d keys, want %d of each: nobody died", len(sink.calls()), len(seen), 3*n)
	}
	for _, key := range []string{"a-", "b-"} {
		for i, got := range strings.Fields(ofKey(sink, key)) {
			if got != fmt.Sprint(i+1) {
				t.Fatalf("%s: sent %s", key, ofKey(sink, key))
			}
		}
	}
	if n := one[int](r, `select count(*) from onlyonce.leases where nonce is not null`); n != 0 {
		t.Errorf("%d leases are still held", n)
	}
}

// A sink that an operator has paused gets no call: none of a pass, none of a parked row, and none
// that waited for another of its key. Other sinks get theirs.
func TestPausedSink(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	var down atomic.Bool
	down.Store(true)
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		switch {
		case strings.Contains(string(a.Body), "chain0"):
			g.pass(a)
		case strings.Contains(string(a.Body), "parked") && down.Load():
			return outbox.Failure("down", nil)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	mail := newScripted(accept)
	mail.name = "mail"
	r.enqueue(charge("parked"))
	r.start(testConfig(sink, mail))
	r.states("retrying")
	r.enqueueAll(keyed("chain", 0), keyed("chain", 1))
	g.wait()
	r.exec(`update onlyonce.sinks set paused_at = clock_timestamp() where name = 'payments'`)
	until(t, "the pause is seen", r.paused.Load)
	down.Store(false)
	g.release()
	before := len(sink.calls())
	for i := range 20 {
		other := charge(fmt.Sprint(i))
		other.Sink = "mail"
		r.enqueue(charge(fmt.Sprint(i)), other)
		until(t, "the other sink goes on", func() bool { return len(mail.calls()) == i+1 })
	}
	// One parked call that was being begun when the pause was seen may go out.
	if n := len(sink.calls()); n > before+1 || strings.Contains(sink.bodies(), "chain1") {
		t.Errorf("sent %s while the sink was paused", sink.bodies())
	}
	r.exec(`update onlyonce.sinks set paused_at = null`)
	r.states("delivered")
	if got := ofKey(sink, "chain"); got != "0 1" {
		t.Errorf("sent %s", got)
	}
}
