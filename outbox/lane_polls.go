package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/outbox/internal/gate"
)

// makeLanesSQL makes a sink's row, its lanes and their leases. In: sink; for how long its calls are
// started again (null: for ever), for operators; the names of the lanes' leases, in their order.
// Idempotent; by the unique names. It locks no row that exists already, unless that time has
// changed. It does not see leases that another relay makes meanwhile; that relay's own statement
// makes their lanes.
const makeLanesSQL = `
with sink as (insert into onlyonce.sinks (name, start_window) values ($1, $2) on conflict do nothing),
known as (update onlyonce.sinks set start_window = $2 where name = $1 and start_window is distinct from $2),
names as (select u.name, u.nth - 1 as n from unnest($3::text[]) with ordinality u(name, nth)),
made as (insert into onlyonce.leases (name) select name from names on conflict (name) do nothing returning id, name),
listed as (
  insert into onlyonce.sink_lanes (id, sink, lane)
  select l.id, $1, n.n::smallint
    from names n cross join lateral (
      select m.id from made m where m.name = n.name
       union all
      select e.id from onlyonce.leases e where e.name = n.name offset 0) l
  on conflict do nothing returning id)
insert into onlyonce.lane_cursors (id) select id from listed`

// pollLanesSQL reads the state of a sink's lanes. In: sink; the prefix of the lease names of relays
// that list it, and of no others (S5): these are counted to share the lanes out. Out: one row: how
// many relays list the sink; whether an operator paused it; lanes that no relay holds, in random
// order. By the unique names of leases, of which requests may have millions (T13).
const pollLanesSQL = `
select (select count(*)
          from onlyonce.leases
         where name >= $2::text
           and name < left($2, -1) || '0'
           and until > clock_timestamp()
           and until <= clock_timestamp() + interval '1 hour'),
       coalesce((select paused_at is not null from onlyonce.sinks where name = $1), false),
       array(select a.lane from onlyonce.sink_lanes a join onlyonce.leases l on l.id = a.id
              where a.sink = $1
                and (l.until is null or l.until <= clock_timestamp() or l.until > clock_timestamp() + interval '1 hour')
              order by random())`

// pollWorkSQL reads which lanes have something to do. In: sink, lanes; whether
// RelayConfig.Reconcile decides about calls of unknown outcome; versions of the lanes that their
// owner knows. Out: a row for each lane that has: the lane; whether rows are new (a row of a
// transaction that this server has not begun is none: no pass could hold it, see O3); whether
// parked calls are due; whether a failover lost commits of the cursor. By the indexes batches_new
// and parked_calls_due; takes no lock (O3).
const pollWorkSQL = `
with t as materialized (select ` + dueTimes + `)
select * from (
  select a.lane,
         exists (select 1
                   from onlyonce.batches r
                  where r.sink = a.sink and r.lane = a.lane and r.xid >= pg_snapshot_xmax(coalesce(a.target, a.prev))
                    and r.xid < pg_snapshot_xmax(pg_current_snapshot()))
         or exists (select 1 from pg_snapshot_xip(coalesce(a.target, a.prev)) x cross join lateral (
                      select 1
                        from onlyonce.batches r
                       where r.sink = a.sink and r.lane = a.lane and r.xid = x offset 0) r) as fresh,
         exists (select 1 from (` + dueRanges + `) r cross join lateral (
                   select 1 from onlyonce.parked p
                    where p.kind = 'call'
                      and p.sink = $1
                      and p.lane = a.lane
                      and ` + dueClass + ` = r.class
                      and p.next_attempt_at > r.after
                      and p.next_attempt_at <= r.until
                      and p.state in ('retrying', 'reconcile') order by p.next_attempt_at limit 1) p
                  where r.class < 2 or $3) as due,
         a.version < m.version as lost
    from onlyonce.lanes a
    join unnest($2::smallint[], $4::bigint[]) as m(lane, version) on m.lane = a.lane where a.sink = $1) s
 where fresh or due or lost`

// heldLanes are the lanes that a relay holds of a sink. It is the clock of their leases: it renews
// them, and the membership by which other relays know that this one lists the sink.
type heldLanes struct {
	*relaySink
	ctx        context.Context
	owners     map[int16]*laneOwner
	ended      chan *laneOwner
	membership *lease.Lease
	renewAt    time.Time
}

// renew extends all leases, in one statement. A lane that the relay has lost ends.
func (l *heldLanes) renew() error {
	bounded, cancel := l.detached(l.ctx)
	defer cancel()
	if l.membership == nil {
		if _, err := l.pool.Exec(
			bounded,
			makeLanesSQL,
			l.name,
			windowBound(l.limits.startWindow()),
			names.Lanes(l.name).List(lanes),
		); err != nil {
			return fmt.Errorf("creating the lanes of sink %s: %w", l.name, err)
		}
		if err := l.configureRates(bounded); err != nil {
			return err
		}
		var err error
		if l.membership, err = lease.Join(bounded, l.pool, names.Relays(l.name), l.cfg.LeaseTTL); err != nil {
			return err
		}
	}
	held := []*lease.Lease{l.membership}
	for _, o := range l.owners {
		held = append(held, o.lane.lease)
	}
	sent := time.Now()
	lost, err := lease.RenewAll(bounded, l.pool, held, l.cfg.LeaseTTL)
	if err != nil {
		return fmt.Errorf("renewing the leases of sink %s: %w", l.name, err)
	}
	l.renewAt = sent.Add(l.cfg.LeaseTTL / 3)
	for _, o := range l.owners {
		if slices.Contains(lost, o.lane.lease) {
			o.lane.end(errReplaced)
		} else {
			o.lane.extend(sent)
		}
	}
	if slices.Contains(lost, l.membership) { // this process was stopped for long
		l.membership = nil
		l.renewAt = time.Time{}
	}
	return nil
}

// acquire takes a lane, unless another relay was first, and starts to work on it. The owner's
// goroutine gives the lane back and sends the owner to ended, once, however it ends; the sender
// then takes it out of owners.
func (l *heldLanes) acquire(lane int16) error {
	bounded, cancel := l.detached(l.ctx)
	defer cancel()
	got, err := lease.Acquire(bounded, l.pool, names.Lanes(l.name).Lease(int(lane)), l.cfg.LeaseTTL)
	if err != nil || got == nil {
		return err
	}
	o := newLaneOwner(l.ctx, l.relaySink, got, lane)
	l.owners[lane] = o
	l.emit.lease(LeaseEvent{Lane: int(lane), Epoch: got.Epoch, Held: true})
	go func() {
		defer func() { l.ended <- o }()
		o.err = o.run()
	}()
	return nil
}

// known returns the lanes, and the versions of their cursors that their owners know. This includes
// lanes that are working: what commits after their last look would wait for the next poll.
func (l *heldLanes) known() (mine []int16, versions []int64) {
	for lane, o := range l.owners {
		mine = append(mine, lane)
		versions = append(versions, o.pass.reader.versionSeen.Load())
	}
	return mine, versions
}

// leave ends the membership, after every lane has ended.
func (l *heldLanes) leave() {
	if l.membership == nil {
		return
	}
	bounded, cancel := l.detached(l.ctx)
	defer cancel()
	l.leaveShares(bounded)
	_ = l.membership.Release(bounded, l.pool) // if that fails it ends by itself
}

// poll looks for free lanes and for work: for work alone, or for both in one transaction. How soon
// it looks for work again follows what it finds (O19).
type poll struct {
	held       *heldLanes
	lanes      time.Time // when it looks for free lanes
	work       time.Time // when it looks for work
	calls      pace.Pursuit
	fresh      uint32            // the lanes that had new calls at the last look, one bit for each
	waits      map[gate.Key]bool // whose calls wait for a rate, as far as waitingSQL has come
	waitsAfter waitingCalls      // where it goes on
	workFailed bool              // the last look for work
}

// lanesSeen is what pollLanesSQL reads.
type lanesSeen struct {
	members int // relays that list the sink
	paused  bool
	free    []int16
}

// workSeen is what pollWorkSQL and waitingSQL read.
type workSeen struct {
	found   []wakeup
	waiting []waitingCalls
}

func newPoll(held *heldLanes) *poll {
	return &poll{held: held, waits: map[gate.Key]bool{}, waitsAfter: noWaiting}
}

func (p *poll) due(time.Time) time.Time {
	if p.lanes.Before(p.work) {
		return p.lanes
	}
	return p.work
}

// look looks for work, and also for free lanes if that is due. An idle relay so has one transaction
// in each PollInterval. It looks for no work if the relay holds no lane or starts no calls. While
// looking for work fails, it looks for lanes by a transaction of its own: what is wrong with the
// calls of a lane must not hide that an operator has paused the sink (O5).
func (p *poll) look() error {
	l := p.held
	now := time.Now()
	p.postpone(now)
	forLanes := !now.Before(p.lanes)
	if forLanes {
		p.lanes = now.Add(l.cfg.PollInterval)
	}
	if forLanes && p.workFailed {
		if err := p.read(true, false); err != nil {
			return err
		}
		forLanes = false
	}
	return p.read(forLanes, l.gate.Open())
}

// read reads what look needs, in one transaction, and passes it on.
func (p *poll) read(forLanes, forWork bool) error {
	l := p.held
	mine, versions := l.known() // before the database is asked
	forWork = forWork && len(mine) > 0
	if !forLanes && !forWork {
		return nil
	}
	bounded, cancel := l.detached(l.ctx)
	defer cancel()
	var seen lanesSeen
	var work workSeen
	var rates []storedRate
	asked := time.Now()
	if err := readCommitted(bounded, l.pool, func(b *pgx.Batch) {
		if forLanes {
			b.Queue(pollLanesSQL, l.name, names.Relays(l.name).Prefix()).QueryRow(func(row pgx.Row) error {
				return row.Scan(&seen.members, &seen.paused, &seen.free)
			})
		}
		if forWork {
			b.Queue(pollWorkSQL, l.name, mine, l.cfg.Reconcile != nil, versions).Query(
				collect(&work.found, pgx.RowToStructByPos[wakeup]),
			)
			b.Queue(waitingSQL, l.name, p.waitsAfter.CallsOf, p.waitsAfter.Lane).Query(
				collect(&work.waiting, pgx.RowToStructByPos[waitingCalls]),
			)
		}
		// After that, so that the rates of all that wait are known, if they have one.
		b.Queue(ratesSQL, l.name).Query(collect(&rates, pgx.RowToStructByPos[storedRate]))
	}); err != nil {
		p.workFailed = p.workFailed || forWork
		return fmt.Errorf("polling for lanes and calls of sink %s: %w", l.name, err)
	}
	p.workFailed = p.workFailed && !forWork
	l.setRates(rates, asked)
	if forLanes {
		p.notePaused(seen.paused)
	}
	if forWork {
		p.notify(work)
	}
	if forLanes {
		return p.share(seen)
	}
	return nil
}

// notePaused notes whether an operator has paused the sink (O5), before any lane is notified or
// taken.
func (p *poll) notePaused(paused bool) {
	if !p.held.gate.SetPaused(paused) {
		return
	}
	p.held.emit.paused(paused)
	p.work = time.Time{} // what waited while the sink was paused is not known
}

// share takes free lanes, and gives back lanes that are another relay's share.
func (p *poll) share(seen lanesSeen) error {
	l := p.held
	share := lease.Share(lanes, seen.members) // how many lanes this relay should hold
	surplus := -share
	for _, o := range l.owners {
		if !o.lane.releasing.Load() {
			surplus++
		}
	}
	before := len(l.owners)
	given := 0
	defer func() { l.emit.shared(len(l.owners)-before, given, len(l.owners)-given) }()
	for _, o := range l.owners {
		if surplus > 0 && !o.lane.releasing.Load() {
			o.lane.requestRelease() // its lease is released when its calls have returned
			surplus--
			given++
		}
	}
	for _, lane := range seen.free {
		if len(l.owners) >= share || l.ctx.Err() != nil {
			break
		}
		if l.owners[lane] != nil {
			continue // released a moment ago
		}
		if err := l.acquire(lane); err != nil {
			return err
		}
		p.work = time.Time{} // whose calls wait in it is not known yet
	}
	return nil
}

// notify notes whose calls wait for a rate, and notifies the lanes that have something to do.
func (p *poll) notify(seen workSeen) {
	l := p.held
	found := seen.found
	p.noteFresh(found, time.Now())
	for _, w := range seen.waiting {
		of := parseCallsOf(w.CallsOf)
		p.waits[of] = true
		l.gate.NoteWaiting(of)
		i := slices.IndexFunc(found, func(f wakeup) bool { return f.Lane == w.Lane })
		if i < 0 {
			i = len(found)
			found = append(found, wakeup{Lane: w.Lane})
		}
		found[i].waiting = append(found[i].waiting, of)
	}
	if n := len(seen.waiting); n == maxWaiting { // the next poll goes on
		p.waitsAfter = seen.waiting[n-1]
	} else {
		l.gate.SetWaiting(p.waits)
		p.waits = map[gate.Key]bool{}
		p.waitsAfter = noWaiting
	}
	for _, w := range found {
		if o := l.owners[w.Lane]; o != nil {
			o.wake(w)
		}
	}
}

// postpone sets when it looks for work again.
func (p *poll) postpone(now time.Time) {
	p.work = now.Add(p.calls.Next(now, p.held.cfg.PollInterval))
}

// noteFresh notes that calls were found, if a lane has new ones that had none at the last look. A
// lane that still has some is at work, and reads on by itself, or stands still. Then a quick pace
// would bring nothing, for as long as that takes (O19).
func (p *poll) noteFresh(found []wakeup, now time.Time) {
	before := p.fresh
	p.fresh = 0
	for _, w := range found {
		if w.Fresh {
			p.fresh |= 1 << w.Lane
		}
	}
	if p.fresh&^before != 0 {
		p.calls.Found(now)
		p.postpone(now)
	}
}

// hintedLead is how long the poll of all lanes waits after hinted lanes were notified, so that it
// does not delay those.
const hintedLead = 2 * time.Millisecond

// hinted notifies the lanes that this process has written to, and then polls all lanes.
func (p *poll) hinted(written uint32) {
	at := time.Time{}
	for lane, o := range p.held.owners {
		if written&(1<<lane) != 0 {
			o.wake(wakeup{Lane: lane, Fresh: true})
			at = time.Now().Add(hintedLead)
		}
	}
	if at.Before(p.work) {
		p.work = at
	}
}
