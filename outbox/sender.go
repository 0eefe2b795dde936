package outbox

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/ready"
)

// lanes is how many lanes a sink has. It never changes. onlyonce.lane computes which one a call
// belongs to.
const lanes = 16

// makeLanesSQL makes a sink's row, its lanes and their leases. In: sink. Idempotent; by the unique
// names. It locks no row that exists already. It does not see leases that another relay makes
// meanwhile; that relay's own statement makes their lanes.
const makeLanesSQL = `
with sink as (insert into onlyonce.sinks (name) values ($1) on conflict do nothing),
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
// owner knows. Out: a row for each lane that has: the lane; whether rows are new; whether parked
// calls are due; whether a failover lost commits of the cursor. By the indexes outbox_log_new and
// parked_calls_due; takes no lock.
const pollWorkSQL = `
select * from (
  select a.lane,
         exists (select 1 from onlyonce.outbox_log r where r.sink = a.sink and r.lane = a.lane and r.xid >= pg_snapshot_xmax(coalesce(a.target, a.prev)))
         or exists (select 1 from pg_snapshot_xip(coalesce(a.target, a.prev)) x cross join lateral (
                      select 1 from onlyonce.outbox_log r where r.sink = a.sink and r.lane = a.lane and r.xid = x offset 0) r) as fresh,
         exists (select 1 from onlyonce.parked p where p.kind = 'call' and p.sink = a.sink and p.lane = a.lane
                    and (p.next_attempt_at <= clock_timestamp() or p.next_attempt_at > clock_timestamp() + interval '2 days' and p.reason <> 'scheduled')
                    and (p.state = 'retrying' or $3 and p.state = 'reconcile')) as due,
         a.version < m.version as lost
    from onlyonce.lanes a join unnest($2::smallint[], $4::bigint[]) as m(lane, version) on m.lane = a.lane where a.sink = $1) s
 where fresh or due or lost`

// sender sends one sink's calls, from the lanes that it holds. One goroutine renews leases, takes
// and gives back lanes, and looks for work. Each lane has a goroutine of its own (laneOwner), and
// so has each call or each batch of calls.
type sender struct {
	cfg         RelayConfig
	pool        *pgxpool.Pool
	sink        Sink
	batcher     Batcher // the sink, if it is one; nil otherwise
	name        string
	limits      Limits
	dbTimeout   time.Duration // bounds each statement and each COMMIT
	wake        chan struct{}
	hints       *atomic.Uint32
	returnGrace time.Duration
	emit        emitter

	link       ready.Link // to the database
	slots      *callSlots
	completing chan struct{} // completions under way, of all sinks
	paused     atomic.Bool

	held  map[int16]*laneOwner
	ended chan *laneOwner

	pollLanesAt time.Time
	renewAt     time.Time
	pollWorkAt  time.Time
	purgeAt     time.Time
	retryAt     time.Time    // after a database error
	membership  *lease.Lease // shows other relays that this one lists the sink
	dbBackoff   *backoff.ExponentialBackOff
}

// purgeEvery is how often a sender looks for settled calls whose retention has passed.
const purgeEvery = time.Minute

func newSender(pool *pgxpool.Pool, cfg RelayConfig, s Sink) *sender {
	b, _ := s.(Batcher)
	return &sender{
		cfg: cfg, pool: pool, sink: s, batcher: b, name: s.Name(), limits: s.Limits(),
		dbTimeout:   cfg.LeaseTTL / 3,
		emit:        emitter{hooks: cfg.Hooks, log: cfg.Logger, sink: s.Name()},
		wake:        make(chan struct{}, 1),
		returnGrace: sinkReturnGrace,
		slots:       newCallSlots(cfg.Concurrency),
	}
}

// detached returns a context for work that must not be cut off when ctx ends, bounded by the
// statement timeout.
func (s *sender) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.dbTimeout)
}

// newBackoff returns the waits between tries at a database that fails.
func (s *sender) newBackoff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(s.cfg.LeaseTTL/100),
		backoff.WithMaxInterval(s.cfg.LeaseTTL/10),
		backoff.WithMaxElapsedTime(0))
}

// acceptsCalls reports whether calls may be started now.
func (s *sender) acceptsCalls() bool {
	if s.paused.Load() {
		return false
	}
	if r, ok := s.sink.(Readier); ok {
		return s.slots.inUse() < r.Ready()
	}
	return true
}

// acquireSlots takes up to n slots for calls that are about to begin, and returns how many it has
// got.
func (s *sender) acquireSlots(n int) int {
	if s.paused.Load() {
		return 0
	}
	limit := s.cfg.Concurrency
	if r, ok := s.sink.(Readier); ok {
		limit = r.Ready()
	}
	return s.slots.acquire(n, limit)
}

// keepsSlot reports whether a call may follow another one in its slot, while free other slots are
// about to be given back.
func (s *sender) keepsSlot(free int) bool {
	if s.paused.Load() {
		return false
	}
	r, limited := s.sink.(Readier)
	return !limited || s.slots.inUse()-free <= r.Ready()
}

// run returns nil after ctx has ended and every lane is given back. It returns an error for a fault
// that waiting does not heal.
func (s *sender) run(ctx context.Context) error {
	s.hints = hintsForSink(s.name)
	s.held, s.ended = map[int16]*laneOwner{}, make(chan *laneOwner, lanes)
	s.dbBackoff = s.newBackoff()
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	var fault error
	timer := time.NewTimer(0)
	defer timer.Stop()
	for stop.Err() == nil {
		if err := s.runDue(stop); err != nil && stop.Err() == nil {
			if needsOperator(err) {
				fault = err
				break
			}
			s.link.Set(err)
			d := s.dbBackoff.NextBackOff()
			s.emit.failed(err, d)
			s.retryAt = time.Now().Add(d)
		}
		timer.Reset(time.Until(s.nextDue()))
		select {
		case <-timer.C:
		case <-s.wake:
			s.handleWake()
		case o := <-s.ended:
			if err := s.removeLane(o); err != nil && fault == nil {
				fault = err
				cancel()
			}
		case <-stop.Done():
		}
	}
	cancel()
	for len(s.held) > 0 {
		for _, o := range s.held {
			o.requestRelease()
		}
		timer.Reset(time.Until(s.renewAt))
		select {
		case o := <-s.ended:
			if err := s.removeLane(o); err != nil {
				fault = errors.Join(fault, err)
			}
		case <-timer.C: // leases last until their lanes are drained
			if err := s.renew(context.WithoutCancel(ctx)); err != nil {
				s.emit.failed(err, 0)
				s.renewAt = time.Now().Add(s.cfg.LeaseTTL / 30)
			}
		}
	}
	if s.membership != nil {
		bounded, cancel := s.detached(ctx)
		defer cancel()
		_ = s.membership.Release(bounded, s.pool) // if that fails it ends by itself
		s.membership = nil
	}
	return fault
}

// removeLane removes a lane whose owner has ended.
func (s *sender) removeLane(o *laneOwner) error {
	delete(s.held, o.lane)
	return o.err
}

// nextDue returns when step has something to do if nothing else happens.
func (s *sender) nextDue() time.Time {
	next := s.renewAt
	for _, at := range []time.Time{s.pollLanesAt, s.pollWorkAt} {
		if at.Before(next) {
			next = at
		}
	}
	if next.Before(s.retryAt) {
		return s.retryAt
	}
	return next
}

// runDue does what is due.
func (s *sender) runDue(ctx context.Context) error {
	if time.Now().Before(s.retryAt) {
		return nil
	}
	if !time.Now().Before(s.renewAt) {
		if err := s.renew(ctx); err != nil {
			return err
		}
	}
	if !time.Now().Before(s.pollLanesAt) {
		if err := s.pollLanes(ctx); err != nil {
			return err
		}
	}
	if !time.Now().Before(s.pollWorkAt) {
		if err := s.pollWork(ctx); err != nil {
			return err
		}
	}
	// Only the relay that holds the first lane.
	if !time.Now().Before(s.purgeAt) && s.held[0] != nil {
		if err := s.purge(ctx); err != nil {
			return err
		}
	}
	s.dbBackoff.Reset()
	s.link.Set(nil)
	return nil
}

// renew extends all leases that this relay holds, in one statement. A lane that it has lost ends.
func (s *sender) renew(ctx context.Context) error {
	bounded, cancel := s.detached(ctx)
	defer cancel()
	if s.membership == nil {
		if _, err := s.pool.Exec(bounded, makeLanesSQL, s.name); err != nil {
			return fmt.Errorf("making the lanes of %s: %w", s.name, err)
		}
		var err error
		if s.membership, err = lease.Join(bounded, s.pool, memberLeasePrefix(s.name), s.cfg.LeaseTTL); err != nil {
			return err
		}
	}
	held := []*lease.Lease{s.membership}
	for _, o := range s.held {
		held = append(held, o.lease)
	}
	sent := time.Now()
	err := fault.Point(fault.RelayRenewing)
	var lost []*lease.Lease
	if err == nil {
		lost, err = lease.RenewAll(bounded, s.pool, held, s.cfg.LeaseTTL)
	}
	if err != nil {
		s.renewAt = time.Now().Add(s.cfg.LeaseTTL / 30)
		return fmt.Errorf("renewing the leases: %w", err)
	}
	s.renewAt = sent.Add(s.cfg.LeaseTTL / 3)
	for _, o := range s.held {
		if slices.Contains(lost, o.lease) {
			o.endLease(errReplaced)
		} else {
			o.extend(sent)
		}
	}
	if slices.Contains(lost, s.membership) { // this process was stopped for long
		s.membership, s.renewAt = nil, time.Time{}
	}
	return nil
}

// pollLanes takes free lanes, gives back lanes that are another relay's share, and checks whether
// the sink is paused.
func (s *sender) pollLanes(ctx context.Context) error {
	s.pollLanesAt = time.Now().Add(s.cfg.PollInterval)
	bounded, cancel := s.detached(ctx)
	defer cancel()
	var members int
	var paused bool
	var free []int16
	if err := fault.Point(fault.RelayLooking); err != nil {
		return err
	}
	if err := s.pool.QueryRow(bounded, pollLanesSQL, s.name, memberLeasePrefix(s.name)).Scan(&members, &paused, &free); err != nil {
		return fmt.Errorf("looking at the lanes of %s: %w", s.name, err)
	}
	if s.paused.Swap(paused) != paused {
		s.emit.paused(paused)
	}
	share := lease.Share(lanes, members) // how many lanes this relay should hold
	surplus := -share
	for _, o := range s.held {
		if !o.releasing.Load() {
			surplus++
		}
	}
	taken, given := 0, 0
	defer func() { s.emit.shared(taken, given, len(s.held)-given) }()
	for _, o := range s.held {
		if surplus > 0 && !o.releasing.Load() {
			o.requestRelease() // its lease is released when its calls have returned
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
		bounded, cancel := s.detached(ctx)
		l, err := lease.Acquire(bounded, s.pool, laneLeaseName(s.name, lane), s.cfg.LeaseTTL)
		cancel()
		if err != nil {
			return err
		}
		if l == nil {
			continue
		}
		if err := fault.Point(fault.RelayAcquired); err != nil {
			return err
		}
		o := newLaneOwner(ctx, s, l, lane)
		s.held[lane] = o
		taken++
		s.emit.lease(LeaseChange{Lane: int(lane), Epoch: l.Epoch, Held: true})
		go func() {
			defer func() { s.ended <- o }()
			o.err = o.run()
		}()
	}
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
		mine, versions = append(mine, lane), append(versions, o.versionSeen.Load())
	}
	if len(mine) == 0 || !s.acceptsCalls() {
		return nil
	}
	bounded, cancel := s.detached(ctx)
	defer cancel()
	var found []wakeup
	if err := readCommitted(bounded, s.pool, func(b *pgx.Batch) {
		b.Queue(pollWorkSQL, s.name, mine, s.cfg.Reconcile != nil, versions).Query(func(rows pgx.Rows) (err error) {
			found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[wakeup])
			return err
		})
	}); err != nil {
		return fmt.Errorf("looking for calls of %s: %w", s.name, err)
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
}

// readCommitted runs statements without sequential scans, and with plans that are made once for
// each connection. The tables may be tiny when the plans are made, and large when they are used
// again. READ COMMITTED: each statement sees what has committed before it.
func readCommitted(ctx context.Context, pool *pgxpool.Pool, queue func(b *pgx.Batch)) error {
	b := &pgx.Batch{}
	queueReads(b, queue)
	return pool.SendBatch(ctx, b).Close()
}

// queueReads queues such a transaction, if there is anything to read.
func queueReads(b *pgx.Batch, queue func(b *pgx.Batch)) {
	what := &pgx.Batch{}
	queue(what)
	if what.Len() == 0 {
		return
	}
	b.Queue(`begin isolation level read committed read only`)
	b.Queue(`select set_config('enable_seqscan', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)`)
	b.QueuedQueries = append(b.QueuedQueries, what.QueuedQueries...)
	b.Queue(`commit`)
}

func laneLeaseName(sink string, lane int16) string { return fmt.Sprintf("relay/%s/%d", sink, lane) }

// memberLeasePrefix is the prefix of the leases' names that count the relays which list a sink.
func memberLeasePrefix(sink string) string { return "member/" + url.PathEscape(sink) + "/" } // escaped, so that no slash in a name makes it another sink's
