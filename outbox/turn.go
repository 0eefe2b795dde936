package outbox

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// fenceSQL is the first statement of every write of a tenure. In: lease, epoch, nonce; lock_timeout, statement_timeout and
// idle_in_transaction_session_timeout in milliseconds. Out: one row. Raises OO001 if another relay owns the lease, and
// keeps the lease from being taken over until the transaction ends, which the timeouts bound; needs READ COMMITTED, so that
// what follows sees what a previous owner has committed. A commit that is not flushed would
// be forgotten in a crash although the call was made, so synchronous_commit = off is not accepted from the session; the
// journal's flush also covers the rows that it is about, which were written to the log before it.
const fenceSQL = `
select set_config('lock_timeout', $4, true), set_config('statement_timeout', $5, true),
       set_config('idle_in_transaction_session_timeout', $6, true),
       set_config('synchronous_commit',
         case current_setting('synchronous_commit') when 'off' then 'local' else current_setting('synchronous_commit') end, true),
       onlyonce.hold($1, $2, $3::uuid)`

// pickSQL picks rows that are due and journals their attempts. In: sink; ids under way; how many; how long after the
// first attempt another may start, null: for ever; when they are due again should this relay die. Out: a row each, in no
// order. Index outbox_pending for the choice: the clock is read in a subselect, once, because a volatile function
// is no index condition, and every pending row of the sink would be visited; then the primary key. Locks
// the rows; skips those that somebody else has locked (an operator), which stay pending and are found by the next poll.
// READ COMMITTED. A row whose window has passed is handed over too, without an attempt: its age keeps it from being
// called, and it is parked.
const pickSQL = `
with t as materialized (select clock_timestamp() as now)
update onlyonce.outbox o
   set attempts = o.attempts + case when coalesce(o.first_attempt_at <= (select now from t) - $4::interval, false) then 0 else 1 end,
       first_attempt_at = coalesce(o.first_attempt_at, clock_timestamp()),
       next_attempt_at = clock_timestamp() + $5::interval
 where o.id = any(array(
         select p.id from onlyonce.outbox p
          where p.sink = $1 and p.state = 'pending' and p.next_attempt_at <= (select now from t) and p.id <> all($2::bigint[])
          order by p.next_attempt_at, p.id limit $3 for no key update skip locked))
   and o.state = 'pending'
returning o.id, o.key::text, o.tenant, o.scope, o.sink, o.name, o.method, o.target, o.header_names, o.header_values, o.body, o.attempts,
          (extract(epoch from clock_timestamp() - o.first_attempt_at) * 1000000)::bigint`

// deliveredSQL settles calls that the remote accepted. In: ids. Primary key; locks the rows.
const deliveredSQL = `
update onlyonce.outbox set state = 'delivered', settled_at = clock_timestamp(), last_error = ''
 where id = any($1::bigint[]) and state = 'pending'`

// retrySQL puts calls off. In: ids, microseconds, errors, of one length. Primary key; locks the rows.
const retrySQL = `
update onlyonce.outbox o set next_attempt_at = clock_timestamp() + r.delay * interval '1 microsecond', last_error = r.error
  from unnest($1::bigint[], $2::bigint[], $3::text[]) as r(id, delay, error)
 where o.id = r.id and o.state = 'pending'`

// parkSQL sets calls aside, whole. In: ids, reasons, errors, of one length. Primary key of the outbox, index
// parked_key_unresolved; locks the rows. A call that was parked before, and sent again since by an operator,
// goes back into its parked row.
const parkSQL = `
with gone as (
  update onlyonce.outbox o set state = 'parked', settled_at = clock_timestamp(), last_error = r.error
    from unnest($1::bigint[], $2::text[], $3::text[]) as r(id, reason, error)
   where o.id = r.id and o.state = 'pending'
  returning o.*, r.reason)
insert into onlyonce.parked (kind, state, reason, error, attempts, tenant, scope, key, sink, call_name, method, target,
                             header_names, header_values, body)
select 'call', case g.reason when 'window' then 'reconcile' else 'waiting' end, g.reason, g.last_error, g.attempts, g.tenant, g.scope,
       g.key, g.sink, g.name, g.method, g.target,
       array(select convert_to(h.v, 'UTF8') from unnest(g.header_names) with ordinality as h(v, n) order by h.n),
       array(select convert_to(h.v, 'UTF8') from unnest(g.header_values) with ordinality as h(v, n) order by h.n), g.body
  from gone g
on conflict (kind, key) where settled_at is null and reason <> 'conflict'
do update set state = excluded.state, reason = excluded.reason, error = excluded.error, attempts = excluded.attempts,
              parked_at = clock_timestamp()`

// purgeSQL deletes delivered rows whose retention has passed. In: sink, retention, how many. Index outbox_delivered, then the
// primary key; locks the rows.
const purgeSQL = `
delete from onlyonce.outbox
 where id = any(array(
         select p.id from onlyonce.outbox p
          where p.sink = $1 and p.state = 'delivered' and p.settled_at <= (select clock_timestamp()) - $2::interval
          order by p.settled_at limit $3))
   and state = 'delivered'`

// purgeLimit bounds a transaction that deletes.
const purgeLimit = 1000

// turn settles the calls that have returned, picks up to want due rows and journals their attempts, in one fenced
// transaction; then it starts the picked rows' calls. If the transaction fails, or nobody knows how it ended, nothing of
// it counts: what was to be settled is settled in the next one (each statement may run twice), and
// rows that were picked are due again by themselves.
func (t *tenure) turn(want int) error {
	s := t.settlements()
	var under []int64
	for id := range t.flights {
		under = append(under, id)
	}
	var picked []*flight
	window := t.w.limits.startWindow()
	// The age is measured by the database after this moment, so an age counted on from here is never too small.
	asked := time.Now()
	err := t.fenced(func(b *pgx.Batch) {
		s.queue(b)
		if want > 0 {
			b.Queue(pickSQL, t.w.name, notNil(under), want, bound(window), t.w.cfg.LeaseTTL).Query(func(rows pgx.Rows) (err error) {
				picked, err = pgx.CollectRows(rows, scanFlight)
				return err
			})
		}
	})
	if err != nil {
		return t.failed(err)
	}
	t.pause.Reset()
	settled := t.done
	t.done = nil
	for _, f := range settled {
		delete(t.flights, f.ID)
	}
	for _, e := range s.told {
		t.w.tell.settled(e)
	}
	if want > 0 {
		t.pollAt = time.Now().Add(t.w.cfg.PollInterval)
		if len(picked) == want { // there may be more
			t.pollAt = asked
		}
	}
	slices.SortFunc(picked, func(a, b *flight) int { return cmp.Compare(a.ID, b.ID) })
	for _, f := range picked {
		t.flights[f.ID] = f
		if window != Forever {
			f.notAfter = asked.Add(window - max(f.age, 0)) // the database's clock may have been set back
		}
		t.start(f)
	}
	return nil
}

// purge deletes a batch of rows whose retention has passed.
func (t *tenure) purge() error {
	var deleted int64
	err := t.fenced(func(b *pgx.Batch) {
		b.Queue(purgeSQL, t.w.name, t.w.cfg.Retention, purgeLimit).Exec(func(tag pgconn.CommandTag) error {
			deleted = tag.RowsAffected()
			return nil
		})
	})
	if err != nil {
		return t.failed(err)
	}
	if deleted < purgeLimit {
		t.purgeAt = time.Now().Add(purgeEvery)
	}
	if deleted > 0 {
		t.w.tell.purged(deleted)
	}
	return nil
}

// fenced runs statements in a transaction that commits only while the lease is ours, and returns nil if and only if it has
// committed. Every statement is answered before COMMIT is sent, and pgx turns a COMMIT that is answered with
// ROLLBACK into an error.
func (t *tenure) fenced(queue func(b *pgx.Batch)) error {
	ctx, cancel := t.w.detached(t.ctx)
	defer cancel()
	tx, err := t.w.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() {
		// Detached, so that the connection goes back to the pool clean; after a commit it does nothing.
		ctx, cancel := t.w.detached(t.ctx)
		defer cancel()
		_ = tx.Rollback(ctx)
	}()
	ms := strconv.FormatInt(max(t.w.dbTimeout.Milliseconds(), 1), 10)
	b := &pgx.Batch{}
	b.Queue(fenceSQL, t.lease.id, t.lease.epoch, t.lease.nonce, ms, ms, ms).Exec(anyRows)
	queue(b)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	// A timeout of its own: the time that the statements took must not cut off the COMMIT.
	commit, cancel := t.w.detached(t.ctx)
	defer cancel()
	if err := tx.Commit(commit); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// anyRows is for statements whose number of rows does not matter; an error ends the batch before it is called.
func anyRows(pgconn.CommandTag) error { return nil }

// settlements are what became of calls, as arrays for the statements that settle them.
type settlements struct {
	delivered               []int64
	retry, delays           []int64
	retryErrors             []string
	parked                  []int64
	parkReasons, parkErrors []string
	told                    []Settled
}

// settlements judges the calls that have returned.
func (t *tenure) settlements() settlements {
	var s settlements
	for _, f := range t.done {
		r := f.result
		e := Settled{Row: f.ID, Key: f.Key, Name: f.Name, Attempt: f.Attempt, Reason: stored(r.Reason), Err: r.Err}
		park := func(as Settlement, reason string) {
			e.As = as
			s.parked, s.parkReasons, s.parkErrors = append(s.parked, f.ID), append(s.parkReasons, reason), append(s.parkErrors, e.Reason)
		}
		switch {
		case r.Outcome == Delivered:
			e.As, e.Reason = SettledDelivered, ""
			s.delivered = append(s.delivered, f.ID)
		case r.Outcome == Rejected:
			park(SettledRejected, "rejected")
		case errors.Is(r.Err, ErrWindow):
			park(SettledReconcile, "window")
		default:
			if r.Outcome != Retry { // a sink that forgot to say: never taken for success
				e.Reason = fmt.Sprintf("the sink returned no outcome (%d)", int(r.Outcome))
			}
			e.As, e.Wait = SettledRetry, t.w.retryDelay(f.Attempt, r.RetryAfter)
			s.retry, s.delays, s.retryErrors = append(s.retry, f.ID), append(s.delays, e.Wait.Microseconds()), append(s.retryErrors, e.Reason)
		}
		s.told = append(s.told, e)
	}
	return s
}

func (s *settlements) queue(b *pgx.Batch) {
	if len(s.delivered) > 0 {
		b.Queue(deliveredSQL, s.delivered).Exec(anyRows)
	}
	if len(s.retry) > 0 {
		b.Queue(retrySQL, s.retry, s.delays, s.retryErrors).Exec(anyRows)
	}
	if len(s.parked) > 0 {
		b.Queue(parkSQL, s.parked, s.parkReasons, s.parkErrors).Exec(anyRows)
	}
}

// scanFlight reads a row of pickSQL.
func scanFlight(r pgx.CollectableRow) (*flight, error) {
	f := &flight{}
	var names, values []string
	var micros int64
	err := r.Scan(&f.ID, &f.Key, &f.Tenant, &f.Scope, &f.Sink, &f.Name, &f.Method, &f.Target, &names, &values, &f.Body, &f.Attempt, &micros)
	f.age = time.Duration(micros) * time.Microsecond
	f.Header = http.Header{}
	for i := range min(len(names), len(values)) {
		f.Header[names[i]] = append(f.Header[names[i]], values[i])
	}
	return f, err
}

// bound is null for [Forever].
func bound(window time.Duration) *time.Duration {
	if window == Forever {
		return nil
	}
	return &window
}

// notNil keeps an empty list from becoming NULL, which would make every comparison with it unknown.
func notNil(ids []int64) []int64 {
	if ids == nil {
		return []int64{}
	}
	return ids
}

// maxReason is the length in bytes of an error that a row keeps.
const maxReason = 300

// stored makes a text fit for a column of text: valid UTF-8 without NUL, on one line, and short. Postgres refuses other
// text, and a row that cannot be settled would hold up every row that is settled with it.
func stored(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) <= maxReason {
		return s
	}
	s = s[:maxReason]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "..."
}
