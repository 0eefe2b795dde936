package eventsource_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// waits returns when some session waits for an advisory lock, and what then comes of the append.
func (r *rig) waits(tx pgx.Tx, ids ...string) <-chan error {
	r.t.Helper()
	done := make(chan error, 1)
	go func() { done <- appended(r.t, tx, ids...) }()
	r.until("a wait for the partition's lock", func() bool {
		return one[bool](
			r,
			`select exists (select from pg_locks
				where locktype = 'advisory' and not granted
				and database = (select oid from pg_database where datname = current_database()))`,
		)
	})
	return done
}

func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	pgtest.Until(r.t, patience, what, cond)
}

func (r *rig) wantLog(want ...string) {
	r.t.Helper()
	if got := r.log(); !slices.Equal(got, want) {
		r.t.Errorf("the log holds %v, want %v", got, want)
	}
}

// Offsets rise in the order of commits: the second writer waits, and its offset follows the
// first's.
func TestE1OffsetsFollowCommits(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	p := r.begin(pgx.ReadCommitted)
	q := r.begin(pgx.ReadCommitted)
	if err := appended(t, p, "p1", "p2"); err != nil {
		t.Fatal(err)
	}
	done := r.waits(q, "q1")
	r.commit(p)
	if err := pgtest.Receive(t, patience, "it is done", done); err != nil {
		t.Fatal(err)
	}
	r.commit(q)
	r.wantLog("0:p1", "1:p2", "2:q1")
}

// A writer that rolls back leaves no hole.
func TestE1OffsetsAreDense(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.append("a")
	p := r.begin(pgx.ReadCommitted)
	q := r.begin(pgx.ReadCommitted)
	if err := appended(t, p, "p"); err != nil {
		t.Fatal(err)
	}
	done := r.waits(q, "q")
	if err := p.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := pgtest.Receive(t, patience, "it is done", done); err != nil {
		t.Fatal(err)
	}
	if err := appended(t, q, "r", "s"); err != nil { // a second time in one transaction
		t.Fatal(err)
	}
	r.commit(q)
	r.wantLog("0:a", "1:q", "2:r", "3:s")
}

// Above READ COMMITTED, an append with a snapshot that is older than another append fails,
// whichever segment that append went to.
func TestE1StaleSnapshotsAreRefused(t *testing.T) {
	t.Parallel()
	for _, iso := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		r := newRig(t, 2)
		r.append("a")
		stale := func() pgx.Tx {
			tx := r.begin(iso)
			if _, err := tx.Exec(t.Context(), `select 1`); err != nil {
				t.Fatal(err)
			}
			return tx
		}
		refused := func(what string, tx pgx.Tx) {
			t.Helper()
			if err := appended(t, tx, "stale"); guard.SQLState(err) != "40001" {
				t.Errorf("%s, %s: %v, want 40001", iso, what, err)
			}
			_ = tx.Rollback(t.Context())
		}
		tx := stale()
		r.append("b")
		refused("in the current segment", tx)

		// A late writer, who has read that segment 0 is current, before 1 is announced and the
		// snapshot is taken.
		late := r.begin(pgx.ReadCommitted)
		if err := appended(t, late, "late"); err != nil {
			t.Fatal(err)
		}
		rotator := r.rotator()
		r.steps(rotator, ring.Announced)
		tx = stale()
		r.commit(late)
		refused("in the segment that drains", tx)

		tx = stale()
		r.steps(rotator, ring.Closed)
		refused("the ring has moved", tx)

		tx = stale() // and one that is not stale goes through
		if err := appended(t, tx, "c"); err != nil {
			t.Fatal(err)
		}
		r.commit(tx)
		r.wantLog("0:a", "1:b", "2:late", "3:c")
	}
}

func (r *rig) rotator() *ring.Rotator {
	r.t.Helper()
	x, err := ring.New(r.pool, ring.Events(), ring.Config{
		MaxBytes:    1,
		Retention:   time.Millisecond,
		LockTimeout: 50 * time.Millisecond,
		LockPause:   time.Millisecond,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = x.Release(context.Background()) })
	return x
}

// steps steps until the rotator has done something.
func (r *rig) steps(x *ring.Rotator, want ring.Action) {
	r.t.Helper()
	var last ring.StepResult
	r.until(string(want), func() bool {
		o, err := x.Step(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		last = o
		return o.Action == want
	})
	_ = last
}

// A partition continues after its last offset if all its rows were in segments that were emptied,
// and so does a reader.
func TestE2EmptiedSegmentsLeaveAFloor(t *testing.T) {
	r := newRig(t, 1)
	r.append("a", "b", "c")
	x := r.rotator()
	r.steps(x, ring.Announced)
	r.steps(x, ring.Closed)
	r.steps(x, ring.Needed) // no consumer has read it yet
	r.exec(`with l as (insert into onlyonce.leases (name) values ('cursor/x/s/0') returning id)
		insert into onlyonce.cursors (id, scope, topic, partition, cluster_id, topic_id, start_offset, start_policy, run_start)
		select l.id, 'x', 's', 0, 'postgres', s.incarnation, 0, 'earliest', 2 from l, onlyonce.streams s where s.topic = 's'`)
	r.steps(x, ring.Needed) // one event is still to be handled
	r.exec(`update onlyonce.cursors set run_start = 3`)
	r.steps(x, ring.Truncated)
	r.wantLog()
	if got := one[string](
		r,
		`select next_offset || ' ' || first_offset from onlyonce.streams s, onlyonce.stream_bounds(s.id, 0::smallint)`,
	); got != "3 3" {
		t.Errorf("the empty log ends and begins at %s", got)
	}
	r.append("d")
	r.wantLog("3:d")
	// Holds nothing back any more.
	r.exec(`update onlyonce.cursors set retired_at = now(), run_start = 0`)
	r.steps(x, ring.Truncated)
	r.append("e")
	r.wantLog("4:e")
}

// What belongs to no stream of ours is no reason to keep a segment, and none to drop one.
func TestE2WhoNeedsASegment(t *testing.T) {
	r := newRig(t, 1)
	r.append("a")
	x := r.rotator()
	r.steps(x, ring.Announced)
	r.steps(x, ring.Closed)
	// A cursor of a Kafka topic of the same name has passed everything, and counts for nothing.
	r.exec(`with l as (insert into onlyonce.leases (name) values ('cursor/x/s/0') returning id)
		insert into onlyonce.cursors (id, scope, topic, partition, cluster_id, topic_id, start_offset, start_policy, run_start)
		select l.id, 'x', 's', 0, 'kafka', null, 0, 'earliest', 99 from l`)
	r.steps(x, ring.Needed)
	r.exec(`delete from onlyonce.streams`)
	r.steps(x, ring.Truncated)
}

// Writers, rotation and readers all at once: every partition's offsets are dense, whichever
// segments are emptied meanwhile (E2).
func TestE1ManyWriters(t *testing.T) {
	r := newRig(t, 3)
	r.exec(`with l as (insert into onlyonce.leases (name) select 'cursor/x/s/' || n from generate_series(0, 2) n returning id, name)
		insert into onlyonce.cursors (id, scope, topic, partition, cluster_id, topic_id, start_offset, start_policy, run_start)
		select l.id, 'x', 's', right(l.name, 1)::int, 'postgres', s.incarnation, 0, 'earliest', 1000000 from l, onlyonce.streams s`)
	x := r.rotator()
	quit := make(chan struct{})
	var rotating sync.WaitGroup
	var emptied atomic.Int64
	rotating.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
			}
			if o, err := x.Step(context.Background()); err != nil {
				t.Error(err)
				return
			} else if o.Action == ring.Truncated {
				emptied.Add(1)
			}
		}
	})
	const writers, each = 6, 40
	committed := int64(0)
	deadline := time.Now().Add(patience)
	for round := 0; round < 2 || emptied.Load() == 0 && time.Now().Before(deadline); round++ {
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() { r.write(w, round, each) })
		}
		wg.Wait()
		for n := range each {
			if n%7 != 6 && n%5 != 4 {
				committed += 2 * writers
			}
		}
	}
	close(quit)
	rotating.Wait()
	if ends := one[int64](
		r,
		`select sum(b.next_offset)::bigint from onlyonce.streams s, generate_series(0, 2) n, onlyonce.stream_bounds(s.id, n::smallint) b`,
	); ends != committed {
		t.Errorf("the partitions end at %d together, and %d events were committed", ends, committed)
	}
	if n := one[int64](
		r,
		`select count(*) from (select from onlyonce.event_log group by stream, partition, "offset" having count(*) > 1) d`,
	); n != 0 {
		t.Errorf("%d offsets were given out twice", n)
	}
	if emptied.Load() == 0 {
		t.Error("no segment was emptied meanwhile")
	}
}

// write appends two events in each transaction, n times, or none if it rolls back.
func (r *rig) write(writer, round, n int) {
	iso := pgx.ReadCommitted
	if writer%2 == 1 {
		iso = pgx.RepeatableRead
	}
	for i := range n {
		id := fmt.Sprintf("%d-%d-%d", writer, round, i)
		for {
			err := pgx.BeginTxFunc(r.t.Context(), r.pool, pgx.TxOptions{IsoLevel: iso}, func(tx pgx.Tx) error {
				if i%7 == 6 {
					return pgx.ErrTxClosed // never appended
				}
				err := eventsource.Append(
					r.t.Context(),
					tx,
					eventsource.Event{Topic: "s", ID: id, Key: []byte(fmt.Sprint(i % 5))},
					eventsource.Event{Topic: "s", ID: id + "'"},
				)
				if err == nil && i%5 == 4 {
					return pgx.ErrTxClosed // undone
				}
				return err
			})
			if guard.SQLState(err) == "40001" || guard.SQLState(err) == "40P01" {
				continue
			}
			if err != nil && !errors.Is(err, pgx.ErrTxClosed) {
				r.t.Error(err)
			}
			break
		}
	}
}

// One key, one partition; without one the id decides.
func TestE1PartitionByKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, 16)
	tx := r.begin(pgx.ReadCommitted)
	var events []eventsource.Event
	for i := range 200 {
		events = append(
			events,
			eventsource.Event{Topic: "s", ID: fmt.Sprint("k", i), Key: []byte(fmt.Sprint(i % 4))},
			eventsource.Event{Topic: "s", ID: fmt.Sprint("n", i)},
		)
	}
	if err := eventsource.Append(t.Context(), tx, events...); err != nil {
		t.Fatal(err)
	}
	r.commit(tx)
	if n := one[int](
		r,
		`select max(n)
			from (select count(distinct partition) as n from onlyonce.event_log where order_key is not null group by order_key) s`,
	); n != 1 {
		t.Errorf("a key is in %d partitions", n)
	}
	if n := one[int](r, `select count(distinct partition) from onlyonce.event_log where order_key is null`); n != 16 {
		t.Errorf("events without a key are in %d partitions of 16", n)
	}
}

func TestBadEventsAreNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	tx := r.begin(pgx.ReadCommitted)
	err := eventsource.Append(t.Context(), tx, eventsource.Event{}, eventsource.Event{Topic: "s", ID: "a\x00", Tenant: "\xff"})
	for _, want := range []string{"event 0: Topic", "event 0: ID", "event 1: ID", "event 1: Tenant"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	if err := eventsource.Append(t.Context(), tx, eventsource.Event{Topic: "other", ID: "a"}); !errors.Is(err, eventsource.ErrNoStream) ||
		!strings.Contains(err.Error(), "other") {
		t.Errorf("to a stream that is not there: %v", err)
	}
}

func TestEveryFaultOfAConfigurationIsNamed(t *testing.T) {
	t.Parallel()
	_, err := eventsource.NewSource(nil, eventsource.Config{
		Group:           "\xff",
		Topics:          []string{"a/b", "s", "s"},
		Partitions:      -1,
		PollInterval:    1,
		LeaseTTL:        1,
		HandoverTimeout: -1,
		FetchBytes:      -1,
		Retention:       -1,
		SegmentBytes:    -1,
	})
	for _, field := range []string{
		"pool", "Group", `"a/b"`, "twice", "Partitions", "PollInterval", "LeaseTTL",
		"HandoverTimeout", "FetchBytes", "Retention", "SegmentBytes",
	} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}
