package ring_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestSteps(t *testing.T) {
	r := newRig(t)
	r.sink("payments")
	x := r.rotator(quick())
	if out := r.step(x); out.Action != ring.Idle {
		t.Fatalf("an empty segment: %+v", out)
	}
	first := r.enqueue(r.pool, "payments")

	if out := r.until(x, ring.Announced); out.Slot != 1 {
		t.Fatalf("%+v", out)
	}
	r.expect("cur 1 draining 0 closed [] retired -")
	if n := one[int64](r, `select use_no from onlyonce.segments where ring = 'outbox' and slot = 1 and opened_at is not null`); n != 1 {
		t.Errorf("slot 1 was opened %d times", n)
	}
	second := r.enqueue(r.pool, "payments")
	if got := r.stands(second); got != 1 {
		t.Errorf("the second call is in slot %d", got)
	}

	r.until(x, ring.Closed)
	r.expect("cur 1 draining - closed [0] retired -")
	if !one[bool](
		r,
		`select s.bound > l.xid and s.closed_at >= s.opened_at from onlyonce.segments s, onlyonce.batches l
			where s.ring = 'outbox' and s.slot = 0 and l.slot = 0`,
	) {
		t.Error("the bound is not above what wrote into the segment")
	}

	r.until(x, ring.Announced)
	r.until(x, ring.Closed)
	r.expect("cur 2 draining - closed [1 0] retired -")
	if out := r.until(x, ring.Needed); out.Slot != 0 || !strings.Contains(out.Why, "payments") {
		t.Fatalf("%+v", out)
	}
	r.done()
	if out := r.until(x, ring.Retired); out.Slot != 0 {
		t.Fatalf("%+v", out)
	}
	r.expect("cur 2 draining - closed [1] retired 0")
	r.until(x, ring.Truncated)
	r.expect("cur 2 draining - closed [1] retired -")
	if r.stands(first) != -1 || r.stands(second) != 1 {
		t.Error("not the oldest segment was emptied")
	}
	if !one[bool](
		r,
		`select opened_at is null and closed_at is null and bound is null and use_no = 1 from onlyonce.segments
			where ring = 'outbox' and slot = 0`,
	) {
		t.Error("slot 0 is not free again")
	}
	r.until(x, ring.Retired)
	r.until(x, ring.Truncated)
	if out := r.step(x); out.Action != ring.Idle {
		t.Errorf("nothing is due: %+v", out)
	}
	// Each step that changed something was reported, and the reason that kept the segment once.
	var told []string
	for _, o := range x.stepped {
		told = append(told, string(o.Action))
	}
	want := "announced closed announced closed needed retired truncated retired truncated"
	if got := strings.Join(told, " "); got != want {
		t.Errorf("told %s", got)
	}
}

func TestAgeAndRetention(t *testing.T) {
	r := newRig(t)
	cfg := quick()
	cfg.MaxBytes = 1 << 30
	cfg.MaxAge = time.Hour
	cfg.Retention = time.Hour
	x := r.rotator(cfg)
	r.enqueue(r.pool, "payments")
	r.never(x, ring.Announced)
	r.exec(`update onlyonce.segments set opened_at = opened_at - interval '2 hours' where ring = 'outbox' and slot = 0`)
	r.until(x, ring.Announced)
	r.until(x, ring.Closed)
	r.sink("payments")
	r.done()
	r.never(x, ring.Retired)
	r.exec(`update onlyonce.segments set closed_at = closed_at - interval '2 hours' where ring = 'outbox' and slot = 0`)
	r.until(x, ring.Retired)
}

// Without a free slot the current segment grows, and that is reported once.
func TestFull(t *testing.T) {
	r := newRig(t)
	x := r.rotator(quick())
	for range 5 {
		r.enqueue(r.pool, "nobody")
		r.until(x, ring.Announced)
		r.until(x, ring.Closed)
	}
	r.expect("cur 5 draining - closed [4 3 2 1 0] retired -")
	r.enqueue(r.pool, "nobody")
	x.stepped = nil
	for range 3 {
		if out := r.step(x); out.Action != ring.Full || out.Slot != 5 || !strings.Contains(out.Why, "nobody") {
			t.Fatalf("%+v", out)
		}
	}
	if len(x.stepped) != 1 {
		t.Errorf("told %v", x.stepped)
	}
	if got := r.stands(r.enqueue(r.pool, "nobody")); got != 5 {
		t.Errorf("enqueued into slot %d", got)
	}
	r.sink("nobody")
	r.done()
	r.until(x, ring.Retired)
	r.until(x, ring.Truncated)
	r.until(x, ring.Announced)
	r.expect("cur 0 draining 5 closed [4 3 2 1] retired -")
	if n := one[int64](r, `select use_no from onlyonce.segments where ring = 'outbox' and slot = 0`); n != 2 {
		t.Errorf("slot 0 was opened %d times", n)
	}
}

// A transaction that has read the segment keeps it, and nothing else.
func TestBusySegment(t *testing.T) {
	r := newRig(t)
	r.sink("payments")
	x := r.rotator(quick())
	r.enqueue(r.pool, "payments")
	r.until(x, ring.Announced)
	r.until(x, ring.Closed)
	r.done()
	r.until(x, ring.Retired)
	reader := r.begin(pgx.ReadCommitted)
	if _, err := reader.Exec(t.Context(), `select count(*) from onlyonce.outbox_log`); err != nil {
		t.Fatal(err)
	}
	r.until(x, ring.Busy)
	r.enqueue(r.pool, "payments")
	r.until(x, ring.Announced)
	r.until(x, ring.Closed)
	r.expect("cur 2 draining - closed [1] retired 0")
	r.until(x, ring.Busy)
	r.commit(reader)
	r.until(x, ring.Truncated)
}

func TestClockThatWentBack(t *testing.T) {
	r := newRig(t)
	x := r.rotator(quick())
	r.enqueue(r.pool, "payments")
	r.exec(`update onlyonce.segments set opened_at = clock_timestamp() + interval '2 minutes' where ring = 'outbox' and slot = 0`)
	if _, err := x.Step(t.Context()); !errors.Is(err, ring.ErrClock) {
		t.Fatalf("%v", err)
	}
	for range 3 {
		if out := r.step(x); out.Action != ring.Standby {
			t.Fatalf("%+v", out)
		}
	}
	r.expect("cur 0 draining - closed [] retired -")
	r.exec(`update onlyonce.segments set opened_at = clock_timestamp() + interval '30 seconds' where ring = 'outbox' and slot = 0`)
	r.until(x, ring.Announced)
}

// S1: a ring that the database does not have, or has with other tables, is a schema that does not
// fit.
func TestS1RingThatIsNotThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := r.rotator(ring.Config{MaxBytes: 1})
	r.exec(`update onlyonce.rings set slots = slots + 1 where name = $1`, ring.Outbox().Name)
	if _, err := x.Step(t.Context()); !errors.Is(err, ring.ErrSchema) || !strings.Contains(err.Error(), "slots and not") {
		t.Errorf("another number of tables: %v", err)
	}
	r.exec(`alter table onlyonce.segments drop constraint segments_ring_fkey`)
	r.exec(`delete from onlyonce.rings where name = $1`, ring.Outbox().Name)
	if _, err := x.Step(t.Context()); !errors.Is(err, ring.ErrSchema) || !strings.Contains(err.Error(), "there is no ring") {
		t.Errorf("no row: %v", err)
	}
}

func TestRun(t *testing.T) {
	r := newRig(t)
	r.sink("payments")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for range 2 {
		x := r.rotator(quick())
		go func() { ended <- x.Run(ctx) }()
	}
	for range 8 { // more than there are slots
		key := r.enqueue(r.pool, "payments")
		deadline := time.Now().Add(patience)
		for r.stands(key) != -1 {
			if time.Now().After(deadline) {
				pgtest.GaveUp(t, patience, fmt.Sprintf("its segment emptied: %v", r.row()))
			}
			if _, err := r.pass(); err != nil {
				t.Fatal(err)
			}
		}
	}
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	if !one[bool](r, `select nonce is null and until is null from onlyonce.leases where name = 'ring/outbox'`) {
		t.Error("the lease was not released")
	}
}

func TestStatus(t *testing.T) {
	r := newRig(t)
	x := r.rotator(quick())
	r.enqueue(r.pool, "payments")
	r.until(x, ring.Announced)
	r.until(x, ring.Closed)
	st, err := x.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	for _, s := range st.Segments {
		states = append(states, s.State)
	}
	if got := strings.Join(states, " "); got != "closed current free free free free" || st.Version != st.Sequence || st.Version < 3 {
		t.Errorf("%s, %+v", got, st)
	}
	s := st.Segments[0]
	good := s.Table == "onlyonce_segments.batches_0" &&
		s.Bytes != 0 &&
		s.OpenFor != nil &&
		s.ClosedFor != nil &&
		s.UseNo == 1
	if !good {
		t.Errorf("%+v", s)
	}
	if s := st.Segments[2]; s.OpenFor != nil || s.ClosedFor != nil || s.UseNo != 0 {
		t.Errorf("%+v", s)
	}
	other := ring.Outbox()
	other.Name = "other"
	if _, err := ring.ReadStatus(t.Context(), r.pool, other); err == nil {
		t.Error("a ring that is not there has a status")
	}
}

func TestEveryFaultOfAConfigurationIsNamed(t *testing.T) {
	_, err := ring.New(nil, ring.Ring{Sequence: "x; drop", Tables: []string{"public.t"}}, ring.Config{
		MaxBytes: -1, MaxAge: -1, Retention: -1, LeaseTTL: 1, LockTimeout: -1, LockPause: -1, Timeout: 1, Interval: -1})
	if !errors.Is(err, ring.ErrConfig) {
		t.Fatal(err)
	}
	for _, field := range []string{
		"pool", "Ring.Name", `"x; drop"`, `"public.t"`, "Ring.Needed", "MaxBytes", "MaxAge",
		"Retention", "LeaseTTL", "LockTimeout", "LockPause", "Timeout", "Interval",
	} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named in: %v", field, err)
		}
	}
}
