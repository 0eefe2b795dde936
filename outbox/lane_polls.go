package outbox

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/lease"
)

// lanes is how many lanes a sink has. It never changes. onlyonce.lane computes which one a call
// belongs to.
const lanes = 16

// makeLanesSQL makes a sink's row, its lanes and their leases. In: sink; for how long its calls are
// started again (null: for ever), for operators. Idempotent; by the unique names. It locks no row
// that exists already, unless that time has changed. It does not see leases that another relay
// makes meanwhile; that relay's own statement makes their lanes.
const makeLanesSQL = `
with sink as (insert into onlyonce.sinks (name, start_window) values ($1, $2) on conflict do nothing),
known as (update onlyonce.sinks set start_window = $2 where name = $1 and start_window is distinct from $2),
names as (select 'relay/' || $1::text || '/' || n as name, n from generate_series(0, 15) n),
made as (insert into onlyonce.leases (name) select name from names on conflict (name) do nothing returning id, name)
insert into onlyonce.lanes (id, sink, lane)
select l.id, $1, n.n::smallint from (select id, name from made union all select id, name from onlyonce.leases) l join names n on n.name = l.name
on conflict do nothing`

// pollLanesSQL reads the state of a sink's lanes. In: sink, how a member's lease name starts. Out:
// one row: how many relays list the sink; whether an operator paused it; lanes that no relay holds,
// in random order.
const pollLanesSQL = `
select (select count(*) from onlyonce.leases where starts_with(name, $2) and until > clock_timestamp() and until <= clock_timestamp() + interval '1 hour'),
       coalesce((select paused_at is not null from onlyonce.sinks where name = $1), false),
       array(select a.lane from onlyonce.lanes a join onlyonce.leases l on l.id = a.id
              where a.sink = $1 and (l.until is null or l.until <= clock_timestamp() or l.until > clock_timestamp() + interval '1 hour') order by random())`

// pollWorkSQL reads which lanes have something to do. In: sink, lanes; whether
// RelayConfig.Reconcile decides about calls of unknown outcome; versions of the lanes that their
// owner knows. Out: a row for each lane that has: the lane; whether rows are new (a row of a
// transaction that this server has not begun is none: no pass could hold it, see O3); whether
// parked calls are due; whether a failover lost commits of the cursor. By the indexes batches_new
// and parked_calls_due; takes no lock.
const pollWorkSQL = `
with t as materialized (select ` + dueTimes + `)
select * from (
  select a.lane,
         exists (select 1 from onlyonce.batches r where r.sink = a.sink and r.lane = a.lane and r.xid >= pg_snapshot_xmax(coalesce(a.target, a.prev))
                    and r.xid < pg_snapshot_xmax(pg_current_snapshot()))
         or exists (select 1 from pg_snapshot_xip(coalesce(a.target, a.prev)) x cross join lateral (
                      select 1 from onlyonce.batches r where r.sink = a.sink and r.lane = a.lane and r.xid = x offset 0) r) as fresh,
         exists (select 1 from (` + dueRanges + `) r cross join lateral (
                   select 1 from onlyonce.parked p
                    where p.kind = 'call' and p.sink = $1 and p.lane = a.lane and ` + dueClass + ` = r.class and p.next_attempt_at > r.after and p.next_attempt_at <= r.until
                      and p.state in ('retrying', 'reconcile') order by p.next_attempt_at limit 1) p where r.class < 2 or $3) as due,
         a.version < m.version as lost
    from onlyonce.lanes a join unnest($2::smallint[], $4::bigint[]) as m(lane, version) on m.lane = a.lane where a.sink = $1) s
 where fresh or due or lost`

// pollLanes takes free lanes, gives back lanes that are another relay's share, and checks whether
// the sink is paused.
func (s *sender) pollLanes(ctx context.Context) error {
	s.pollLanesAt = time.Now().Add(s.cfg.PollInterval)
	bounded, cancel := s.detached(ctx)
	defer cancel()
	var members int
	var paused bool
	var free []int16
	var rates []storedRate
	asked := time.Now()
	if err := readCommitted(bounded, s.pool, func(b *pgx.Batch) {
		b.Queue(pollLanesSQL, s.name, memberLeasePrefix(s.name)).QueryRow(func(row pgx.Row) error { return row.Scan(&members, &paused, &free) })
		b.Queue(ratesSQL, s.name).Query(collect(&rates, pgx.RowToStructByPos[storedRate]))
	}); err != nil {
		return fmt.Errorf("polling the lanes of sink %s: %w", s.name, err)
	}
	s.rates.read(rates, asked)
	s.slots.signalFree() // a rate may be gone
	if s.slots.paused.Swap(paused) != paused {
		s.emit.paused(paused)
	}
	share := lease.Share(lanes, members) // how many lanes this relay should hold
	surplus := -share
	for _, o := range s.held {
		if !o.lane.releasing.Load() {
			surplus++
		}
	}
	before, given := len(s.held), 0
	defer func() { s.emit.shared(len(s.held)-before, given, len(s.held)-given) }()
	for _, o := range s.held {
		if surplus > 0 && !o.lane.releasing.Load() {
			o.lane.requestRelease() // its lease is released when its calls have returned
			surplus--
			given++
		}
	}
	for _, lane := range free {
		if len(s.held) >= share || ctx.Err() != nil {
			break
		}
		if s.held[lane] != nil {
			continue // released a moment ago
		}
		if err := s.acquireLane(ctx, lane); err != nil {
			return err
		}
	}
	return nil
}

// acquireLane takes a lane, unless another relay was first, and starts to work on it.
func (s *sender) acquireLane(ctx context.Context, lane int16) error {
	bounded, cancel := s.detached(ctx)
	defer cancel()
	l, err := lease.Acquire(bounded, s.pool, laneLeaseName(s.name, lane), s.cfg.LeaseTTL)
	if err != nil || l == nil {
		return err
	}
	o := newLaneOwner(ctx, s.relaySink, l, lane)
	s.held[lane] = o
	s.emit.lease(LeaseChange{Lane: int(lane), Epoch: l.Epoch, Held: true})
	go func() {
		defer func() { s.ended <- o }()
		o.err = o.run()
	}()
	return nil
}

// pollWork notifies lanes that have something to do.
func (s *sender) pollWork(ctx context.Context) error {
	s.pollWorkAt = time.Now().Add(s.cfg.PollInterval)
	mine := make([]int16, 0, len(s.held))
	var versions []int64
	// This includes lanes that are working: what commits after their last look would wait for the
	// next poll.
	for lane, o := range s.held {
		// The version is read before the database is asked.
		mine, versions = append(mine, lane), append(versions, o.reader.versionSeen.Load())
	}
	if len(mine) == 0 || !s.slots.open() {
		return nil
	}
	bounded, cancel := s.detached(ctx)
	defer cancel()
	var found []wakeup
	var waiting []waitingCalls
	var rates []storedRate
	asked := time.Now()
	if err := readCommitted(bounded, s.pool, func(b *pgx.Batch) {
		b.Queue(pollWorkSQL, s.name, mine, s.cfg.Reconcile != nil, versions).Query(func(rows pgx.Rows) (err error) {
			found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[wakeup])
			return err
		})
		b.Queue(waitingSQL, s.name, s.waitsAfter.CallsOf, s.waitsAfter.Lane).Query(collect(&waiting, pgx.RowToStructByPos[waitingCalls]))
		// After that, so that the rates of all that wait are known, if they have one.
		b.Queue(ratesSQL, s.name).Query(collect(&rates, pgx.RowToStructByPos[storedRate]))
	}); err != nil {
		return fmt.Errorf("polling for calls of sink %s: %w", s.name, err)
	}
	s.rates.read(rates, asked)
	byLane := map[int16][]callsOf{}
	for _, w := range waiting {
		of := parseCallsOf(w.CallsOf)
		s.waits[of] = true
		s.rates.noteWaiting(of)
		byLane[w.Lane] = append(byLane[w.Lane], of)
	}
	if n := len(waiting); n == maxWaiting { // the next poll goes on
		s.waitsAfter = waiting[n-1]
	} else {
		s.rates.setWaiting(s.waits)
		s.waits, s.waitsAfter = map[callsOf]bool{}, noWaiting
	}
	for i := range found {
		found[i].waiting = byLane[found[i].Lane]
		delete(byLane, found[i].Lane)
	}
	for lane, waiting := range byLane {
		found = append(found, wakeup{Lane: lane, waiting: waiting})
	}
	for _, w := range found {
		if o := s.held[w.Lane]; o != nil {
			o.wake(w)
		}
	}
	return nil
}

// wakeup is a row of pollWorkSQL.
type wakeup struct {
	Lane       int16
	Fresh, Due bool
	Lost       bool // a failover has lost commits of the cursor, and no new row need follow

	waiting []callsOf // whose calls wait for a rate in the lane
}

// waitingCalls is a row of waitingSQL.
type waitingCalls struct {
	CallsOf string
	Lane    int16
}

// noWaiting is before every row of waitingSQL.
var noWaiting = waitingCalls{Lane: -1}

// maxWaiting is how many rows waitingSQL returns at most.
const maxWaiting = 4096

func laneLeaseName(sink string, lane int16) string { return fmt.Sprintf("relay/%s/%d", sink, lane) }

// memberLeasePrefix is the prefix of the leases' names that count the relays which list a sink.
func memberLeasePrefix(sink string) string { return "member/" + url.PathEscape(sink) + "/" } // escaped, so that no slash in a name makes it another sink's
