package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// T2: a fenced-out owner sends its whole batch in one pipeline with its COMMIT, and none of it
// commits.
//
// The first owner is stopped in its handler. Its statements, among them the fence, have not been
// sent. Another owner takes over and handles everything. Then the first continues and sends BEGIN,
// fence, effects, seal and COMMIT in one go (F1).
func TestT2FencedOutOwnerCommitsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 10)
	entered := make(chan struct{})
	resume := make(chan struct{})
	var once sync.Once
	cfg := testConfig()
	// no key prevents the double: only the fence does
	cfg.Key = nil
	cfg.PositionsOnly = true
	stopFirst := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		once.Do(func() { close(entered); <-resume })
		tx.Queue(`insert into effects (value) values ('zombie')`)
		return nil
	}, cfg)
	pgtest.Receive(t, patience, "the handler is entered", entered)
	second := &memlog.Source{Log: r.log, GroupID: "stock"}
	stopSecond := r.startOn(second, r.pool, queued, cfg)
	r.reaches(0, 10)
	stopSecond()
	close(resume)
	stopFirst()
	r.once(values...)
}

// F1, F2: two consumers both believe that they own the partition, and their group believes them.
// They take turns in the database and never apply a message twice (D2).
func TestF2TwoOwnersOfOnePartition(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	var values []string
	cfg := testConfig()
	cfg.Key = nil
	cfg.PositionsOnly = true
	for i := range 300 {
		v := fmt.Sprintf("m%d", i)
		r.log.Append(0, v)
		values = append(values, v)
	}
	r.src.Believes = true
	r.src.FetchLimit = 7
	second := &memlog.Source{Log: r.log, GroupID: "stock", Believes: true, FetchLimit: 7}
	stop1 := r.start(queued, cfg) // writes the partition, 0
	stop2 := r.startOn(second, r.pool, func(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
		tx.Queue(`insert into effects (value, part, off) values ($1, 2, $2)`, string(m.Value), m.Offset)
		return nil
	}, cfg)
	r.reaches(0, 300)
	until(t, "both have worked, and one of them once more", func() bool {
		if r.count(`select count(distinct part) from effects`) == 2 && r.count(`select epoch from onlyonce.leases`) > 2 {
			return true
		}
		v := fmt.Sprintf("m%d", len(values))
		r.log.Append(0, v)
		values = append(values, v)
		return false
	})
	r.reaches(0, int64(len(values)))
	stop1()
	stop2()
	r.once(values...)
	if n := r.count(`select count(*) from onlyonce.parked`); n != 0 {
		t.Errorf("%d messages parked: losing the partition was held against them", n)
	}
}

// F2: a member of an older generation, which cannot prove its membership, does not take the cursor
// from its owner.
func TestF2StaleMemberDoesNotRaise(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 5)
	stop := r.start(queued, testConfig())
	r.reaches(0, 5)
	epoch := r.count(`select epoch from onlyonce.leases`)
	stale := &memlog.Source{Log: r.log, GroupID: "stock"}
	ctx, cancel := context.WithCancel(t.Context())
	tried := make(chan struct{}, 1000)
	stale.OnCommit = func(int32, int64) error {
		select {
		case tried <- struct{}{}:
		default:
		}
		return fmt.Errorf("%w: error 22", source.ErrOwnershipLost)
	}
	c, err := consumer.New(r.pool, stale, consumer.HandlerFunc(queued), testConfig())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Run(apart(ctx)) }()
	pgtest.Receive(t, patience, "tried", tried)
	pgtest.Receive(t, patience, "tried", tried)
	cancel()
	pgtest.Receive(t, patience, "it is done", done)
	if e := r.count(`select epoch from onlyonce.leases`); e != epoch {
		t.Errorf("the epoch went from %d to %d: a stale member raised it", epoch, e)
	}
	stop()
}

// F3: Kafka's committed offset is adopted if another program wrote it, and only then.
func TestF3StartIsDecidedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 10)
	r.log.SetCommitted("stock", 0, 4, "")
	stop := r.start(queued, testConfig())
	r.reaches(0, 10)
	stop()
	r.once(values[4:]...)
	if p := r.count(`select count(*) from onlyonce.cursors where start_policy = 'committed' and start_offset = 4`); p != 1 {
		t.Error("the start is not on record")
	}

	r.exec(`delete from onlyonce.leases`) // the database loses its history; Kafka keeps our offset
	stop = r.start(queued, testConfig())
	h := r.halted()
	stop()
	good := h.Reason == consumer.HaltHistoryLost &&
		h.Position == 10 &&
		h.Scope == "stock" &&
		h.Group == "stock" &&
		h.Topic == "orders"
	if !good {
		t.Errorf("halt: %+v", h)
	}
	if n := r.count(`select count(*) from onlyonce.cursors`); n != 0 {
		t.Error("a cursor was made from our own offset in Kafka")
	}
}

// F5: in a compacted topic the record below the position may be gone; that is no reason to halt.
// Another record in its place is.
func TestF5CompactedRecordBelowThePosition(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 10)
	stop := r.start(queued, testConfig())
	r.reaches(0, 10)
	stop()
	r.log.Compact(0, 9)
	r.log.Append(0, "new", id("new"))
	stop = r.start(queued, testConfig())
	r.reaches(0, 11)
	stop()
	r.once(append(values, "new")...)
	r.log.Truncate(0, 10)
	r.log.Append(0, "other", id("other"))
	stop = r.start(queued, testConfig())
	h := r.halted()
	stop()
	if h.Reason != consumer.HaltTruncated {
		t.Errorf("halt: %v", h)
	}
}

// F6: if retention deleted records before they were handled, the partition halts; offsets that held
// nothing are no gap.
func TestF6GapHaltsAndMarkersDoNot(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 5)
	stop := r.start(queued, testConfig())
	r.reaches(0, 5)
	r.log.Skip(0, 1) // a trailing marker
	r.reaches(0, 6)  // written although nothing follows it
	stop()
	r.log.DeleteBefore(0, 6)
	r.log.Append(0, "a", id("a"))
	stop = r.start(queued, testConfig())
	r.reaches(0, 7)
	stop()
	r.log.Append(0, "lost", id("lost"))
	r.log.Append(0, "b", id("b"))
	r.log.DeleteBefore(0, 8)
	stop = r.start(queued, testConfig())
	h := r.halted()
	stop()
	if h.Reason != consumer.HaltGap ||
		h.Position != 7 ||
		!strings.Contains(h.Detail, "begins at offset 8: 1 offsets were deleted before they were handled (retention)") {
		t.Errorf("halt: %v", h)
	}
}

// F6: a position that was set below the log's start is a gap too, but the error does not mention
// retention.
func TestF6GapBelowAPositionThatWasSet(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 10)
	r.log.DeleteBefore(0, 5)
	r.log.SetCommitted("stock", 0, 2, "somebody else's")
	stop := r.start(queued, testConfig())
	h := r.halted()
	stop()
	good := h.Reason == consumer.HaltGap &&
		h.Position == 2 &&
		strings.Contains(h.Detail, "begins at offset 5, 3 offsets above the position") &&
		!strings.Contains(h.Detail, "retention")
	if !good {
		t.Errorf("halt: %v", h)
	}
}

// A halted partition does not stop the others, and continues by itself once the halt is resolved.
func TestHaltedPartitionLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.numbered(0, 5)
	stop := r.start(queued, testConfig())
	r.reaches(0, 5)
	stop()
	r.log.DeleteBefore(0, 5)
	r.log.Append(0, "lost", id("lost"))
	r.log.DeleteBefore(0, 6)
	r.log.Append(0, "after", id("after"))
	stop = r.start(queued, testConfig())
	r.halted()
	r.numbered(1, 5)
	r.reaches(1, 5)
	// What `onlyonce cursor adopt -at 6` does.
	r.exec(`with c as (update onlyonce.cursors
                          set run = run + 1, run_start = 6
                        where partition = 0 returning id), a as (delete from onlyonce.attempts)
  update onlyonce.leases l set epoch = epoch + 1, nonce = gen_random_uuid() from c where l.id = c.id`)
	r.reaches(0, 7)
	stop()
	if n := r.count(`select count(*) from effects where value = 'after'`); n != 1 {
		t.Errorf("%d effects after the halt was resolved, want 1", n)
	}
}

// F1: a failover that loses the last commits sets the position back with them. The next fence
// notices, whatever its owner remembers.
func TestF1LostCommitsAreRedone(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	cfg := testConfig()
	cfg.Key = nil
	cfg.PositionsOnly = true
	values := r.numbered(0, 10)
	stop := r.start(queued, cfg)
	r.reaches(0, 10)
	more := []string{"a", "b", "c"}
	for _, v := range more {
		r.log.Append(0, v)
	}
	r.reaches(0, 13)
	r.exec(`with lost as (delete from onlyonce.progress where next_offset > 10 returning 1) delete from effects where off >= 10`)
	r.log.Append(0, "d")
	r.reaches(0, 14)
	stop()
	r.once(append(append(values, more...), "d")...)
}

// F1: a failover loses commits, and no message comes after it. The owner finds out by itself.
func TestF1LostCommitsAreRedoneWithoutNewMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 10)
	stop := r.start(queued, testConfig())
	r.reaches(0, 10)
	r.exec(`with p as (delete from onlyonce.progress returning 1), i as (delete from onlyonce.inbox returning 1) delete from effects`)
	r.reaches(0, 10)
	until(t, "effects", func() bool { return r.count(`select count(*) from effects`) == 10 })
	stop()
	r.once(values...)
}

// A pool of one connection is enough, also to find out why the fence raised.
func TestOneConnectionIsEnough(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	cfg := r.pool.Config().Copy()
	cfg.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	values := r.numbered(0, 10)
	ccfg := testConfig()
	ccfg.Key = nil
	ccfg.PositionsOnly = true
	stop := r.startOn(r.src, pool, queued, ccfg)
	r.reaches(0, 10)
	r.exec(`with lost as (delete from onlyonce.progress returning 1) delete from effects`)
	r.log.Append(0, "d")
	r.reaches(0, 11)
	stop()
	r.once(append(values, "d")...)
}

// F10: if an operator moves the position of a working owner, the owner is fenced and continues from
// the new position.
func TestF10PositionMovedUnderTheOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 5)
	cfg := testConfig()
	cfg.Key = nil
	cfg.PositionsOnly = true
	stop := r.start(queued, cfg)
	r.reaches(0, 5)
	r.exec(`with c as (update onlyonce.cursors set run = run + 1, run_start = 2 where partition = 0 returning id)
		update onlyonce.leases l set epoch = epoch + 1, nonce = gen_random_uuid() from c where l.id = c.id`)
	r.log.Append(0, "p0-5", id("p0-5")) // whatever comes next finds the fence
	r.reaches(0, 6)
	stop()
	for i, want := range []int{1, 1, 2, 2, 2, 1} {
		if n := r.count(`select count(*) from effects where value = $1`, fmt.Sprintf("p0-%d", i)); n != want {
			t.Errorf("p0-%d has %d effects, want %d", i, n, want)
		}
	}
}

// The SQL functions hold without the engine: every language gets the same guarantee (T2).
func TestT6CommitNeedsFenceAndSealInOneTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 1)
	stop := r.start(queued, testConfig())
	r.reaches(0, 1)
	stop()
	const fence = `
select onlyonce.fence(
  l.id,
  l.epoch,
  l.nonce,
  0,
  %d,
  %d,
  null,
  null,
  null,
  null,
  '1s',
  '1s',
  '1s'
) from onlyonce.leases l`
	for _, c := range []struct {
		name string
		sql  []string
		code string
	}{
		{"no seal", []string{"begin", fmt.Sprintf(fence, 1, 2), "commit"}, "OO002"},
		{
			"seal in another transaction",
			[]string{"begin", fmt.Sprintf(fence, 1, 2), "select onlyonce.seal()", "rollback", "begin", "select onlyonce.seal()"},
			"OO002",
		},
		{"constraints before the seal", []string{"begin", fmt.Sprintf(fence, 1, 2), "set constraints all immediate"}, "OO002"},
		{"position has moved", []string{"begin", fmt.Sprintf(fence, 0, 2)}, "OO001"},
		{"another epoch", []string{"begin", strings.Replace(fmt.Sprintf(fence, 1, 2), "l.epoch", "l.epoch - 1", 1)}, "OO001"},
		{"another nonce", []string{"begin", strings.Replace(fmt.Sprintf(fence, 1, 2), "l.nonce", "gen_random_uuid()", 1)}, "OO001"},
		{"seal without fence", []string{"begin", "select onlyonce.seal()"}, "OO002"},
		{"all in order", []string{"begin", fmt.Sprintf(fence, 1, 2), "select onlyonce.seal()", "commit"}, ""},
	} {
		conn, err := pgx.ConnectConfig(t.Context(), r.pool.Config().ConnConfig)
		if err != nil {
			t.Fatal(err)
		}
		var last error
		for _, sql := range c.sql {
			if _, last = conn.Exec(t.Context(), sql); last != nil {
				break
			}
		}
		var pg *pgconn.PgError
		errors.As(last, &pg)
		wrong := (c.code == "" && last != nil) ||
			(c.code != "" && (pg == nil || pg.Code != c.code))
		if wrong {
			t.Errorf("%s: %v, want %q", c.name, last, c.code)
		}
		_ = conn.Close(t.Context())
	}
	if p := r.position(0); p != 2 {
		t.Errorf("position %d, want 2", p)
	}
}
