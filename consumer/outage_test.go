package consumer_test

import (
	"fmt"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// outage is a database whose time is moved, and whose keys rotate by a process that is not a
// consumer's: a relay does that.
type outage struct {
	*rig
	rotator *ring.Rotator
	builder *inbox.Builder
}

// passes lets time pass: earlier records get that much older.
func (o *outage) passes(d time.Duration) {
	o.t.Helper()
	o.exec(
		`
update onlyonce.segments
   set opened_at = opened_at - make_interval(secs => $1), closed_at = closed_at - make_interval(secs => $1)`,
		d.Seconds(),
	)
	o.exec(`update onlyonce.scopes set created_at = created_at - make_interval(secs => $1)`, d.Seconds())
	o.exec(`update onlyonce.rings set forgotten = forgotten - make_interval(secs => $1)`, d.Seconds())
	o.exec(`update onlyonce.frontiers set frontier = frontier - make_interval(secs => $1)`, d.Seconds())
}

// rotates takes every step that can be taken, builds the filters that can be built, and returns
// what the steps did.
func (o *outage) rotates() map[ring.Action]int {
	o.t.Helper()
	did := map[ring.Action]int{}
	until(o.t, "rotation comes to rest", func() bool {
		out, err := o.rotator.Step(o.t.Context())
		if err != nil {
			o.t.Fatal(err)
		}
		did[out.Action]++
		return out.Action == ring.Idle || out.Action == ring.Needed
	})
	until(o.t, "every closed segment has a filter", func() bool {
		if _, err := o.builder.Step(o.t.Context()); err != nil {
			o.t.Fatal(err)
		}
		filters := o.count(`select count(*) from onlyonce.filters where ring = 'consumer_keys'`)
		return filters == o.count(`select cardinality(closed) from onlyonce.rings where name = 'consumer_keys'`)
	})
	if err := o.rotator.Release(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
	return did
}

// works runs a consumer until it has handled all partitions up to next, and returns a function that
// ends it.
func (o *outage) works(src *memlog.Source, scope string, next ...int64) (stop func()) {
	o.t.Helper()
	cfg := testConfig()
	cfg.Scope = scope
	stop = o.startOn(src, o.pool, queued, cfg)
	for p, n := range next {
		until(o.t, fmt.Sprintf("%s, partition %d, is handled up to %d", scope, p, n), func() bool {
			return o.count(`select count(*) from onlyonce.positions where scope = $1 and partition = $2 and next_offset = $3`,
				scope, p, n) == 1
		})
	}
	return stop
}

// says waits until each frontier that can be recorded is newer than this call.
func (o *outage) says(cursors int) {
	o.t.Helper()
	var since time.Time
	if err := o.pool.QueryRow(o.t.Context(), `select clock_timestamp() - interval '1 minute'`).Scan(&since); err != nil {
		o.t.Fatal(err)
	}
	until(o.t, "the consumers that run have said how far they are", func() bool {
		return o.count(`select count(*) from onlyonce.frontiers where frontier >= $1`, since) == cursors
	})
}

// K6: consumers are down for three times the horizon, while another one of the same database
// continues and segments are rotated. The log holds copies on both sides: some were handled before,
// some came while no consumer was reading, some come later. Each message takes effect once, and
// none is parked. When the consumers have caught up, the old keys are forgotten after all.
//
// Not parallel: rotation waits for all transactions of the server.
func TestK6OutageLongerThanTheHorizon(t *testing.T) {
	r := newRig(t, 2)
	o := &outage{rig: r, builder: inbox.NewBuilder(r.pool, ring.ConsumerKeys(), slog.New(slog.DiscardHandler))}
	var err error
	if o.rotator, err = ring.New(r.pool, ring.ConsumerKeys(), ring.Config{MaxBytes: math.MaxInt64}); err != nil {
		t.Fatal(err)
	}
	const horizon = 7 * time.Hour
	r.exec(`update onlyonce.rings set horizon = '7 hours' where name = 'consumer_keys'`)
	other := memlog.NewLog("returns", 1)
	others := &memlog.Source{Log: other, GroupID: "billing"}

	var values []string
	ends := make([]int64, 2)
	put := func(partition int32, v string) {
		r.log.Append(partition, v, id(v))
		ends[partition]++
	}
	batch := func(name string, n int) (all []string) {
		for i := range n {
			v := fmt.Sprintf("%s-%d", name, i)
			put(int32(i%2), v)
			all = append(all, v)
		}
		values = append(values, all...)
		return all
	}
	copies := func(of []string, shift int) { // in the other partition too, and twice
		for i, v := range of {
			put(int32((i+shift)%2), v)
		}
	}
	business := func(n int) (stop func()) { // of the consumer that is not down
		v := fmt.Sprintf("billed-%d", n)
		values = append(values, v)
		other.Append(0, v, id(v))
		other.Append(0, v, id(v))
		return o.works(others, "billing", int64(2*(n+1)))
	}

	before := batch("before", 20)
	copies(before[:10], 1)
	stopStock := o.works(r.src, "stock", ends...)
	stopBilling := business(0)
	o.says(3)
	stopStock()
	stopBilling()
	r.once(values...)
	o.passes(horizon / 7)
	if did := o.rotates(); did[ring.Announced] != 1 || did[ring.Closed] != 1 {
		t.Fatalf("%v", did)
	}

	// The outage begins. Producers try again, and write what is new.
	copies(before, 0)
	during := batch("during", 20)
	copies(before[5:15], 1)
	copies(during[:10], 1)
	for n := range 3 {
		o.passes(horizon)
		stopBilling = business(1 + n)
		if n == 2 {
			o.says(1)
		}
		stopBilling()
		o.rotates()
	}
	if n := r.count(`select cardinality(closed) from onlyonce.rings where name = 'consumer_keys'`); n < 2 {
		t.Errorf("%d segments are closed: what was claimed before the outage is forgotten", n)
	}

	// The consumers come back, and copies go on coming.
	behind := batch("behind", 10)
	copies(during, 1)
	copies(behind, 1)
	stopStock = o.works(r.src, "stock", ends...)
	stopBilling = business(4)
	o.says(3)
	stopStock()
	stopBilling()
	r.once(values...)
	if n := r.count(`select count(*) from onlyonce.parked`); n > 0 || len(r.reasons()) > 0 {
		t.Errorf("%d messages are parked: %v", n, r.reasons())
	}

	// All consumers have passed the horizon of what was closed before: now it is emptied.
	if did := o.rotates(); did[ring.Truncated] == 0 {
		t.Errorf("nothing is forgotten when it may be: %v", did)
	}
	copies(behind, 0)
	late := batch("late", 6)
	copies(late, 1)
	o.works(r.src, "stock", ends...)()
	r.once(values...)
	if r.count(`select count(*) from onlyonce.parked`) > 0 {
		t.Error("messages are parked")
	}
}
