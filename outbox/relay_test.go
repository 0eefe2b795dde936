package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/outbox"
)

// Only committed rows are sent: not before their commit, and never after a rollback (O2).
func TestOnlyCommittedRowsAreSent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	r.start(testConfig(sink))
	open, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer open.Rollback(context.Background())
	if err := outbox.Enqueue(t.Context(), open, charge("rolled back")); err != nil {
		t.Fatal(err)
	}
	r.enqueue(charge("committed"))
	r.states("delivered")
	if err := open.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.enqueue(charge("later"))
	r.states("delivered")
	if got := sink.bodies(); got != "committed later" {
		t.Errorf("sent %s", got)
	}
}

func TestRowsOfUnknownSinksWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	other := charge("1")
	other.Sink = "unknown"
	r.enqueue(other, charge("2"))
	x := r.start(testConfig(sink))
	until(t, "the known one is sent", func() bool { return len(sink.calls()) == 1 })
	x.stop()
	if n := one[int](r, `select count(*) from onlyonce.calls where sink = 'unknown' and state = 'pending'`); n != 1 {
		t.Error("the row of the unknown sink was touched")
	}
	late := newScripted(accept)
	late.name = "unknown"
	r.start(testConfig(late))
	r.states("delivered")
}

// A remote that hangs holds up its own calls only, and has no more of them at once than its limit.
func TestConcurrencyIsBoundedForEachSink(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var now, most atomic.Int64
	g := r.gate()
	slow := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		g.pass(a)
		return outbox.Result{Outcome: outbox.Delivered}
	})
	quick := newScripted(accept)
	quick.name = "mail"
	cfg := testConfig(slow, quick)
	cfg.Concurrency = 3
	r.start(cfg)
	for i := range 12 {
		mail := charge(fmt.Sprint(i))
		mail.Sink = "mail"
		r.enqueue(charge(fmt.Sprint(i)), mail)
	}
	until(t, "the quick sink is done", func() bool {
		return one[int](r, `select count(*) from onlyonce.calls where sink = 'mail' and state = 'delivered'`) == 12
	})
	until(t, "the slow sink is full", func() bool { return now.Load() == 3 })
	g.release()
	r.states("delivered")
	if most.Load() != 3 {
		t.Errorf("%d calls at once, want 3", most.Load())
	}
	if len(slow.calls()) != 12 {
		t.Errorf("%d calls, want 12", len(slow.calls()))
	}
}

// A call that takes longer than its row's next due time is not made a second time meanwhile:
// neither the first attempt, whose row is parked when the lane goes on without it, nor one at a
// parked row (O4).
func TestRowUnderWayIsNotPickedAgain(t *testing.T) {
	t.Parallel()
	for attempt, name := range []string{1: "first attempt", 2: "second attempt"} {
		if name == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			g := r.gate()
			sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
				if a.Number < attempt {
					return outbox.Failure("again", nil)
				}
				g.pass(a)
				return outbox.Result{Outcome: outbox.Delivered}
			})
			first := charge("1")
			second := charge("2")
			second.ID = r.sameLane(first, "2") // shows that the lane has looked for rows since
			r.enqueue(first)
			r.start(testConfig(sink))
			g.wait()
			until(t, "its row is parked", func() bool { return one[int](r, `select count(*) from onlyonce.parked`) == 1 })
			r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp() - interval '1 hour'`)
			r.enqueue(second)
			if a := g.wait(); a.Name == "charge" && string(a.Body) != string(second.Body) {
				t.Errorf("%s, attempt %d, is under way a second time", a.Body, a.Number)
			}
			until(t, "the other one's row is parked", func() bool { return one[int](r, `select count(*) from onlyonce.parked`) == 2 })
			g.release()
			r.states("delivered")
			if n := len(sink.calls()); n != 2*attempt {
				t.Errorf("%d calls, want %d", n, 2*attempt)
			}
		})
	}
}

func TestWake(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	cfg := testConfig(sink)
	cfg.PollInterval = time.Minute
	relay := r.relay(cfg)
	r.run(relay)
	r.holds(16)
	r.enqueue(charge("1"))
	until(t, "it is delivered", func() bool {
		relay.Wake() // the first one may come before the row is there
		return one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`) == 1
	})
}

// The journal is written before the call. The pass of a call is committed before its first attempt,
// and attempt and time of a parked row before each further one. No transaction is open (O6).
func TestJournalBeforeTheCall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var fault atomic.Value
	sink := newScripted(nil)
	sink.send = func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		journal := `select pg_visible_in_snapshot(o.xid, l.target) and o.id > l.last_id and $2 = 1
			from onlyonce.outbox_log o join onlyonce.lanes l using (sink, lane) where o.id = $1`
		if a.Number > 1 {
			journal = `select attempts = $2 and first_attempt_at is not null and next_attempt_at > clock_timestamp()
				from onlyonce.parked where row_id = $1`
		}
		var ok bool
		err := r.pool.QueryRow(ctx, journal, a.ID, a.Number).Scan(&ok)
		if err != nil || !ok {
			fault.Store(fmt.Sprintf("attempt %d is not in the journal: %v", a.Number, err))
		}
		// The relay may be busy with other lanes just now; a transaction that is open for this call
		// would stay open.
		open := 1
		for deadline := time.Now().Add(5 * time.Second); err == nil && open > 0 && time.Now().Before(deadline); {
			err = r.pool.QueryRow(
				ctx,
				`select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'`,
			).Scan(&open)
		}
		if err != nil || open > 0 {
			fault.Store(fmt.Sprintf("%d transactions are open during a call: %v", open, err))
		}
		if a.Number < 3 {
			return outbox.Failure("again", nil)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	}
	cfg := testConfig(sink)
	cfg.Concurrency = 1
	r.enqueue(charge("1"))
	r.start(cfg)
	r.states("delivered")
	if f := fault.Load(); f != nil {
		t.Error(f)
	}
	if n := len(sink.calls()); n != 3 {
		t.Errorf("%d calls", n)
	}
}

// If a sink breaks its rules, its own call is tried again, and no other call is affected.
func TestSinksThatMisbehave(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		switch a.Number {
		case 1:
			panic("card 4242")
		case 2:
			runtime.Goexit()
		case 3:
			return outbox.Result{}
		case 4:
			return outbox.Failure("bad\x00bytes\xff and\nlines "+strings.Repeat("é", 300), errors.New("x"))
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	r.enqueue(charge("1"))
	r.start(testConfig(sink))
	r.states("delivered")
	var reasons []string
	for _, s := range r.told(5) {
		reasons = append(reasons, s.Reason)
	}
	got := strings.Join(reasons[:3], "|")
	if want := "it panicked (string)|the sink ended its goroutine|the sink returned no outcome (0)"; got != want {
		t.Errorf("reasons %s", got)
	}
	if s := reasons[3]; !strings.HasPrefix(s, "bad bytes\uFFFD and lines é") || len(s) > 310 {
		t.Errorf("stored %q", s)
	}
}
