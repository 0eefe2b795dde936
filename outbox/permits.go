package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// takePermitsSQL takes permits and a share of the calls that may be under way; see the function's
// comment in the migration. In: sink; relay; number of the question; arrays of one length: whose
// calls, how many permits, and of calls under way how many it may have until now and how many it
// wants. Out: whose calls, granted, microseconds until there is another, share.
const takePermitsSQL = `select calls_of, granted, wait, share from onlyonce.take_permits($1, $2, $3, $4, $5, $6, $7)`

// leaveSharesSQL gives back what a relay may have under way, but for some calls. In: sink, relay,
// whose.
const leaveSharesSQL = `delete from onlyonce.shares where sink = $1 and relay = $2 and calls_of <> all ($3)`

// holdSQL notes that a remote wants no calls. In: sink; arrays of one length: whose, the
// stored form of a prefix (null: it is none), for how many microseconds. By the primary key.
const holdSQL = `
insert into onlyonce.rates as r (sink, calls_of, order_prefix, held_until)
select $1, h.calls_of, h.prefix, clock_timestamp() + h.micros * interval '1 microsecond' from unnest($2::text[], $3::bigint[], $4::bigint[]) as h(calls_of, prefix, micros)
 order by h.calls_of collate "C"
on conflict (sink, calls_of) do update
  set held_until = case when r.held_until <= clock_timestamp() + interval '1 hour' then greatest(r.held_until, excluded.held_until) else excluded.held_until end`

// permitLife is how long permits that were taken may be used, by the relay's own clock. Those of a
// relay that was stopped lapse.
const permitLife = 500 * time.Millisecond

// Bounds of the wait between two tries to take permits of a rate, if there are none.
const (
	permitRetryMin = 10 * time.Millisecond
	permitRetryMax = time.Second
)

// permitted reports whether the next row of the chunk may be called, and takes its permit. Without
// one it sets the row aside, and those after it that count for the same rate (O14).
func (o *laneOwner) permitted() bool {
	c, rates := o.chunk, o.sink.rates
	a := c.rows[c.next]
	if a.takePermit(rates) {
		return true
	}
	wanted := map[callsOf]int{}
	for _, next := range c.rows[c.next:min(c.next+max(2*o.sink.slots.capacity, 64), len(c.rows))] {
		if of, waits := rates.mustWait(next); of != allCalls && !waits && rates.available(of) == 0 {
			wanted[of]++
		}
	}
	if len(wanted) > 0 {
		q := rates.request(wanted)
		if err := o.sink.takePermits(o.lane.ctx, &q); err != nil {
			o.sink.emit.failed(err, 0) // it waits, as if there were none
		}
	}
	if a.takePermit(rates) {
		return true
	}
	rates.noteWaiting(a.rated)
	c.setNextAside()
	return false
}

// takePermit takes the call's permit, if it needs one, and reports whether the call may be started.
func (a *callAttempt) takePermit(rates *relayRates) bool {
	return a.Tenant == "" && a.orderPrefix == 0 || rates.takeFor(a)
}

// releasePermit notes that the call is under way no more.
func (a *callAttempt) releasePermit(rates *relayRates) {
	if a.permitted {
		a.permitted = false
		rates.returned(a.rated, 1)
	}
}

// waitsForRate reports whether the sink may start no call now, however many slots are free, and
// asks for permits.
func (s *relaySink) waitsForRate() bool {
	if s.rates.mayStart() {
		return false
	}
	s.rates.want(allCalls)
	return true
}

// serveRates writes what remotes have asked for, takes the permits that are wanted, and wakes the
// lanes if more calls may be started.
func (s *sender) serveRates(ctx context.Context) error {
	if err := s.writeHolds(ctx); err != nil {
		return err
	}
	if q := s.rates.due(time.Now()); len(q.limits) > 0 {
		if err := s.takePermits(ctx, &q); err != nil {
			return err
		}
	}
	if !s.rates.takeRegained() {
		return nil
	}
	s.slots.signalFree()
	for lane, o := range s.held { // in random order
		o.wake(wakeup{Lane: lane})
	}
	return nil
}

// takePermits asks the database. A transaction that takes only permits does not wait for its flush:
// a crash gives back what was taken in the last moment. A share that grows has to be flushed,
// because others would get the same places after a crash.
func (s *relaySink) takePermits(ctx context.Context, q *permitRequest) error {
	bounded, cancel := s.detached(ctx)
	defer cancel()
	var grants []permitGrant
	asked := time.Now()
	b := &pgx.Batch{}
	b.Queue(`begin isolation level read committed`)
	b.Queue(primary.PinSQL)
	if !q.grows() {
		b.Queue(`set local synchronous_commit = off`)
	}
	b.Queue(takePermitsSQL, s.name, s.rates.relay, q.number, stored(q.limits), q.permits, q.held, q.wants).Query(collect(&grants, pgx.RowToStructByPos[permitGrant]))
	b.Queue(`commit`)
	if err := s.pool.SendBatch(bounded, b).Close(); err != nil {
		return fmt.Errorf("taking permits of sink %s: %w", s.name, err)
	}
	s.rates.granted(q, grants, asked)
	return nil
}

// permitRequest is what a relay asks of the database: a value for each limit.
type permitRequest struct {
	number      int64
	limits      []callsOf
	permits     []int32
	held, wants []int32 // of calls under way: how many it may have until now, and wants to have
}

// add asks for permits, and for a share of what may be under way. The caller has the
// lock.
func (q *permitRequest) add(r *relayRates, of callsOf, permits int) {
	var held, wants int
	if q.number == 0 {
		r.questions++
		q.number = r.questions
	}
	if l := r.limits[of]; l != nil && l.bounded {
		held, wants = l.ask(q.number, time.Now(), r.underWay[of], r.capacity)
	}
	q.limits, q.permits = append(q.limits, of), append(q.permits, int32(permits))
	q.held, q.wants = append(q.held, int32(held)), append(q.wants, int32(wants))
}

// stored returns limits as onlyonce.rates.calls_of has them.
func stored(limits []callsOf) []string {
	all := make([]string, len(limits))
	for i, of := range limits {
		all[i] = of.stored()
	}
	return all
}

// grows reports whether it asks for a larger share.
func (q *permitRequest) grows() bool {
	for i, wants := range q.wants {
		if wants > q.held[i] {
			return true
		}
	}
	return false
}

// request asks for permits of several limits at once, and for a share of each.
func (r *relayRates) request(wanted map[callsOf]int) (q permitRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for t, n := range wanted {
		if l := r.limits[t]; l != nil && l.bounded {
			if l.wantMore(time.Now(), r.shortFor); !r.hasPlace(t, l, time.Now()) {
				n = 0
			}
		}
		q.add(r, t, n)
	}
	return q
}

// askAt returns when to ask for a limit, and for how many permits then; never: not at all.
func (l *rateLimit) askAt(now time.Time, underWay int) (at time.Time, permits int, never bool) {
	never = true
	if l.limited && l.wanted > 0 {
		at, permits, never = l.takeAt, l.wanted, false
	}
	if !l.bounded {
		return at, permits, never
	}
	share, asks := l.dueAt(now, underWay)
	if asks && (never || share.Before(at)) {
		if now.Before(at) {
			permits = 0
		}
		at = share
	}
	return at, permits, never && !asks
}

// next returns when to ask the database; zero: not at all.
func (r *relayRates) next(now time.Time) (next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for t, l := range r.limits {
		if at, _, never := l.askAt(now, r.underWay[t]); !never && (next.IsZero() || at.Before(next)) {
			if next = at; at.IsZero() {
				return now
			}
		}
	}
	if len(r.holds) > 0 || r.regained {
		return now
	}
	return next
}

// due returns what to ask for now.
func (r *relayRates) due(now time.Time) (q permitRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for t, l := range r.limits {
		if at, permits, never := l.askAt(now, r.underWay[t]); !never && !now.Before(at) {
			q.add(r, t, permits)
		}
	}
	return q
}

// permitGrant is a row of takePermitsSQL.
type permitGrant struct {
	CallsOf string
	Granted int32
	Wait    int64
	Share   *int32
}

// granted takes in what was asked for at a time. If more calls may be started, the sender wakes the
// lanes.
func (r *relayRates) granted(q *permitRequest, grants []permitGrant, asked time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, t := range q.limits {
		if l := r.limits[t]; l != nil { // if the rate is gone
			if l.asked = asked; q.permits[i] > 0 {
				l.takeAt = asked.Add(permitRetryMax)
			}
		}
	}
	some := false
	for _, g := range grants {
		of := parseCallsOf(g.CallsOf)
		l := r.limits[of]
		if l == nil {
			continue
		}
		i := slices.Index(q.limits, of)
		before := l.share.n
		if g.Share != nil && l.granted(q.number, int(*g.Share), int(q.held[i]), asked) {
			some = some || l.share.n > int(q.held[i]) || before == 0 && l.share.n > 0
		}
		if q.permits[i] == 0 {
			continue
		}
		if !asked.Before(l.lapse) {
			l.permits = 0
		}
		if g.Granted > 0 || g.Wait > 0 { // else there is no rate any more
			l.takeAt = asked.Add(min(max(fromMicros(g.Wait), permitRetryMin), permitRetryMax))
		}
		if g.Granted > 0 {
			l.permits, l.lapse, l.wanted, some = l.permits+int(g.Granted), asked.Add(permitLife), 0, true
		}
	}
	if some {
		r.regain()
	}
}

// writeHolds writes what remotes have asked for, so that all relays hold it.
func (s *sender) writeHolds(ctx context.Context) error {
	s.rates.mu.Lock()
	written := map[callsOf]time.Time{}
	var all []string
	var prefixes []*int64
	var micros []int64
	for t, until := range s.rates.holds {
		written[t] = until
		var prefix *int64
		if t.prefix != "" {
			hash := codec.OrderPrefix(s.name, t.prefix)
			prefix = &hash
		}
		all, prefixes, micros = append(all, t.stored()), append(prefixes, prefix), append(micros, max(time.Until(until), 0).Microseconds())
	}
	s.rates.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	bounded, cancel := s.detached(ctx)
	defer cancel()
	if _, err := s.pool.Exec(bounded, holdSQL, s.name, all, prefixes, micros); err != nil {
		return fmt.Errorf("noting Retry-After of sink %s: %w", s.name, err)
	}
	s.rates.mu.Lock()
	defer s.rates.mu.Unlock()
	for t, until := range written {
		if s.rates.holds[t].Equal(until) {
			delete(s.rates.holds, t)
		}
	}
	return nil
}

// leaveShares gives back what this relay may have under way, unless calls are: a sink may not have
// returned them. If that fails, it ends by itself.
func (s *sender) leaveShares(ctx context.Context) {
	if has, busy := s.rates.shares(); has {
		_, _ = s.pool.Exec(ctx, leaveSharesSQL, s.name, s.rates.relay, busy)
	}
}
