package outbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// takePermitsSQL takes permits and a share of the calls that may be under way; see the function's
// comment in the migration. Those after @question are arrays of one length: whose calls, how
// many permits, and of calls under way how many it may have until now and how many it wants. Out:
// whose calls, granted, microseconds until there is another, share.
var takePermitsSQL = newStatement(`select calls_of, granted, wait, share from onlyonce.take_permits(@sink, @relay, @question, @calls_of, @permits, @held, @wants)`)

// leaveSharesSQL gives back what a relay may have under way, but for some calls. In: sink, relay,
// whose.
const leaveSharesSQL = `delete from onlyonce.shares where sink = $1 and relay = $2 and calls_of <> all ($3)`

// holdSQL notes that calls of a tenant or of the sink wait. In: sink; arrays of one length: whose,
// for how many microseconds, why (empty: the remote asks for it). By the primary key.
const holdSQL = `
insert into onlyonce.rates as r (sink, calls_of, held_until, held_why)
select $1, h.calls_of, clock_timestamp() + h.micros * interval '1 microsecond', nullif(h.why, '')
  from unnest($2::text[], $3::bigint[], $4::text[]) as h(calls_of, micros, why)
 order by h.calls_of collate "C"
on conflict (sink, calls_of) do update
  set held_until = case when r.held_until <= clock_timestamp() + interval '1 hour' then greatest(r.held_until, excluded.held_until) else excluded.held_until end,
      held_why = excluded.held_why`

// configureRatesSQL writes the rates of a sink that a relay is configured with, and forgets those
// that it is not. In: sink; arrays of one length: whose calls, the stored form of a prefix (0: it
// is none), rates, calls under way (0: no limit). By the primary key; it locks no row that stays as
// it is.
const configureRatesSQL = `
with c as materialized (select calls_of, nullif(prefix, 0) as prefix, nullif(rate, 0) as rate, nullif(in_flight, 0) as in_flight
                          from unnest($2::text[], $3::bigint[], $4::float8[], $5::int[]) as c(calls_of, prefix, rate, in_flight)),
gone as (update onlyonce.rates r set configured = null, configured_in_flight = null
          where r.sink = $1 and (r.configured is not null or r.configured_in_flight is not null) and r.calls_of not in (select calls_of from c))
insert into onlyonce.rates as r (sink, calls_of, order_prefix, configured, configured_in_flight) select $1, calls_of, prefix, rate, in_flight from c order by calls_of collate "C"
on conflict (sink, calls_of) do update set configured = excluded.configured, configured_in_flight = excluded.configured_in_flight
  where r.configured is distinct from excluded.configured or r.configured_in_flight is distinct from excluded.configured_in_flight`

// ratesSQL reads the rates of a sink, by the index rates_limits. In: sink. Out: whose calls; the
// stored form of a prefix (null: it is none); whether a rate is set; whether it is set how many
// calls may be under way; for how many microseconds the remote wants no calls (null: it takes
// them). A time more than an hour ahead was written while the clock was ahead.
const ratesSQL = `
select r.calls_of, r.order_prefix, coalesce(r.per_second, r.configured) is not null, coalesce(r.in_flight, r.configured_in_flight) is not null,
       case when r.held_until > clock_timestamp() and r.held_until <= clock_timestamp() + interval '1 hour'
            then (extract(epoch from r.held_until - clock_timestamp()) * 1000000)::bigint end
  from onlyonce.rates r
 where r.sink = $1 and (r.per_second is not null or r.configured is not null or r.in_flight is not null or r.configured_in_flight is not null or r.held_until is not null)`

// forgetRatesSQL deletes rows that limit nothing, an hour after the remote took calls again, and
// buckets of tenants by [Rate].EachTenant that are full, after an hour. Calls that wait say whose
// rate it is, and are found without the row. It deletes shares too that ended an hour ago: a relay
// that died does not give its own back, and of a tenant without calls nobody asks. In: sink.
const forgetRatesSQL = `
with dead as (delete from onlyonce.shares where sink = $1 and until < clock_timestamp() - interval '1 hour')
delete from onlyonce.rates
 where sink = $1 and per_second is null and configured is null and in_flight is null and configured_in_flight is null and set_at is null
   and (held_until is null or held_until < clock_timestamp() - interval '1 hour' or held_until > clock_timestamp() + interval '2 hours')
   and (filled_at > clock_timestamp() + interval '2 hours'
        or filled_at < clock_timestamp() - interval '1 hour' - interval '1 second' * coalesce((
             select 1 / greatest(coalesce(e.per_second, e.configured), 1e-6) from onlyonce.rates e
              where e.sink = $1 and e.calls_of = 'tenants' and coalesce(e.per_second, e.configured) is not null), 0))`

// waitingSQL reads for which rates calls of a sink wait, and in which lanes: a row for each pair,
// at most 4,096. In: sink; the pair that the ones before ended with. It reads one entry of the
// index parked_waits for each pair, however many calls wait.
const waitingSQL = `
with recursive w as (
  (select p.waits_for, p.lane from onlyonce.parked p
    where p.sink = $1 and p.waits_for is not null and p.state = 'retrying' and p.next_attempt_at is null and (p.waits_for, p.lane) > ($2, $3::smallint)
    order by p.waits_for, p.lane limit 1)
  union all
  select n.* from w cross join lateral (
    select p.waits_for, p.lane from onlyonce.parked p
     where p.sink = $1 and p.waits_for is not null and p.state = 'retrying' and p.next_attempt_at is null and (p.waits_for, p.lane) > (w.waits_for, w.lane)
     order by p.waits_for, p.lane limit 1) n)
select waits_for, lane from w limit 4096` // maxWaiting

// waitingCalls is a row of waitingSQL.
type waitingCalls struct {
	CallsOf string
	Lane    int16
}

// noWaiting is before every row of waitingSQL.
var noWaiting = waitingCalls{Lane: -1}

// maxWaiting is how many rows waitingSQL returns at most.
const maxWaiting = 4096

// permitLife is how long permits that were taken may be used, by the relay's own clock. Those of a
// relay that was stopped lapse.
const permitLife = 500 * time.Millisecond

// Bounds of the wait between two tries to take permits of a rate, if there are none.
const (
	permitRetryMin = 10 * time.Millisecond
	permitRetryMax = time.Second
)

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
	takePermitsSQL.queue(b, pgx.NamedArgs{
		"sink": s.name, "relay": s.rates.relay, "question": q.number, "calls_of": stored(q.limits), "permits": q.permits, "held": q.held, "wants": q.wants,
	}).Query(collect(&grants, pgx.RowToStructByPos[permitGrant]))
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

// askAt returns when to ask for a limit, and for how many permits then.
func (l *rateLimit) askAt(now time.Time, underWay int) (at time.Time, permits int) {
	at = never
	if l.limited && l.wanted > 0 {
		at, permits = l.takeAt, l.wanted
	}
	if !l.bounded {
		return at, permits
	}
	if share := l.dueAt(now, underWay); share.Before(at) {
		if now.Before(at) {
			permits = 0
		}
		at = share
	}
	return at, permits
}

// due returns when to ask the database.
func (r *relayRates) due(now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.holds) > 0 || r.regained {
		return time.Time{}
	}
	next := never
	for of, l := range r.limits {
		if at, _ := l.askAt(now, r.underWay[of]); at.Before(next) {
			next = at
		}
	}
	return next
}

// maxAsked bounds the limits of one question. Its answer comes when all of their buckets are locked
// and counted, and permits lapse permitLife after the question was sent.
const maxAsked = 128

// ask returns what to ask for now: for the sink and the shares of calls under way first, because a
// share that lapses counts no more, and then for the limits that have waited longest (O14, O15).
func (r *relayRates) ask(now time.Time) (q permitRequest) {
	type dueLimit struct {
		of      callsOf
		at      time.Time
		permits int
		first   bool
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var due []dueLimit
	for of, l := range r.limits {
		if at, permits := l.askAt(now, r.underWay[of]); !now.Before(at) {
			n := r.underWay[of]
			due = append(due, dueLimit{of, at, permits, of == allCalls || l.bounded && n > 0 && !now.Before(l.dueAt(now, n))})
		}
	}
	slices.SortFunc(due, func(a, b dueLimit) int {
		switch {
		case a.first == b.first:
			return a.at.Compare(b.at)
		case a.first:
			return -1
		}
		return 1
	})
	for _, d := range due[:min(len(due), maxAsked)] {
		q.add(r, d.of, d.permits)
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

// writeHolds writes which calls wait, so that all relays hold them.
func (s *relaySink) writeHolds(ctx context.Context) error {
	s.rates.mu.Lock()
	written := maps.Clone(s.rates.holds)
	s.rates.mu.Unlock()
	if len(written) == 0 {
		return nil
	}
	var all, reasons []string
	var micros []int64
	for of, held := range written {
		all = append(all, of.stored())
		micros = append(micros, max(time.Until(held.until), 0).Microseconds())
		reasons = append(reasons, held.why)
	}
	bounded, cancel := s.detached(ctx)
	defer cancel()
	if _, err := s.pool.Exec(bounded, holdSQL, s.name, all, micros, reasons); err != nil {
		return fmt.Errorf("noting that calls of sink %s wait: %w", s.name, err)
	}
	s.rates.mu.Lock()
	defer s.rates.mu.Unlock()
	for of, held := range written {
		if s.rates.holds[of].until.Equal(held.until) {
			delete(s.rates.holds, of)
		}
	}
	return nil
}

// leaveShares gives back what this relay may have under way, unless calls are: a sink may not have
// returned them. If that fails, it ends by itself.
func (s *relaySink) leaveShares(ctx context.Context) {
	if has, busy := s.rates.shares(); has {
		_, _ = s.pool.Exec(ctx, leaveSharesSQL, s.name, s.rates.relay, busy)
	}
}

// configureRates writes the rates of RelayConfig.
func (s *relaySink) configureRates(ctx context.Context) error {
	all, prefixes, rates, inFlight := []string{}, []int64{}, []float64{}, []int32{}
	for _, r := range s.cfg.Rates {
		if r.Sink != s.name {
			continue
		}
		var prefix int64
		if r.OrderingKeyPrefix != "" {
			prefix = codec.OrderPrefix(s.name, r.OrderingKeyPrefix)
		}
		all, prefixes = append(all, callsOf{tenant: r.Tenant, prefix: r.OrderingKeyPrefix, each: r.EachTenant}.stored()), append(prefixes, prefix)
		rates, inFlight = append(rates, r.PerSecond), append(inFlight, int32(r.InFlight))
	}
	if _, err := s.pool.Exec(ctx, configureRatesSQL, s.name, all, prefixes, rates, inFlight); err != nil {
		return fmt.Errorf("setting the rates of sink %s: %w", s.name, err)
	}
	return nil
}
