package outbox

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/fields"
)

// Rate is how many calls relays start a second, and how many they have under way at once, all of
// them together: to a sink, or for one of its tenants.
//
// The calls of a tenant that are over its rate are set aside: they wait in onlyonce.parked, in the
// order in which they came, and hold up no other calls of their lane. The calls of a sink that is
// over its rate stay in the log. Neither begins the window of a key, or counts as an attempt.
//
// An operator can set another rate with `onlyonce outbox rate`, which counts instead of this one.
type Rate struct {
	// Sink is the name of one of RelayConfig.Sinks. Required.
	Sink string

	// Tenant limits only the calls of one tenant. Defaults to empty: all calls of the sink.
	Tenant string

	// PerSecond is how many calls a second are started: above 0, up to 1,000,000. For example, 0.1
	// is one call in 10 s. It is counted in the database, half a second's worth at a time: in any T
	// seconds at most PerSecond * (T + 1) calls are started, or one more if PerSecond is below 2.
	// Each attempt counts, and so do retries. Defaults to 0: no limit, if InFlight has one.
	PerSecond float64

	// InFlight is how many calls are under way at once: from 1 to 1,000,000. For example, 4 for a
	// remote that takes four connections. Relays share them evenly, and what one does not need goes
	// to the others. Calls of a relay that died count for 10 s. Defaults to 0: no limit, if
	// PerSecond has one.
	InFlight int
}

// checkRates notes what is wrong with the rates.
func checkRates(l *fields.List, rates []Rate, sinks []Sink) {
	seen := map[Rate]bool{}
	for i, r := range rates {
		field := fmt.Sprintf("Rates[%d]", i)
		known := false
		for _, s := range sinks {
			known = known || s != nil && s.Name() == r.Sink
		}
		if !known {
			l.Add(field, "%q is none of Sinks", r.Sink)
		}
		checkText(l, field+".Tenant", r.Tenant)
		switch {
		case r.PerSecond == 0 && r.InFlight == 0:
			l.Add(field, "must have PerSecond, InFlight, or both")
		case !(r.PerSecond >= 0 && r.PerSecond <= maxRate):
			l.Add(field, "PerSecond must be above 0, and at most %d", int(maxRate))
		case r.InFlight < 0 || r.InFlight > maxRate:
			l.Add(field, "InFlight must be from 1 to %d", int(maxRate))
		}
		id := Rate{Sink: r.Sink, Tenant: r.Tenant}
		if seen[id] {
			l.Add(field, "a second rate of sink %q and tenant %q", r.Sink, r.Tenant)
		}
		seen[id] = true
	}
}

// maxRate is the largest rate, in calls a second, and the largest number of calls under way.
const maxRate = 1e6

// configureRatesSQL writes the rates of a sink that a relay is configured with, and forgets those
// that it is not. In: sink; arrays of one length: tenants, rates, calls under way (0: no limit). By
// the primary key; it locks no row that stays as it is.
const configureRatesSQL = `
with c as materialized (select tenant, nullif(rate, 0) as rate, nullif(in_flight, 0) as in_flight from unnest($2::text[], $3::float8[], $4::int[]) as c(tenant, rate, in_flight)),
gone as (update onlyonce.rates r set configured = null, configured_in_flight = null
          where r.sink = $1 and (r.configured is not null or r.configured_in_flight is not null) and r.tenant not in (select tenant from c))
insert into onlyonce.rates as r (sink, tenant, configured, configured_in_flight) select $1, tenant, rate, in_flight from c order by tenant
on conflict (sink, tenant) do update set configured = excluded.configured, configured_in_flight = excluded.configured_in_flight
  where r.configured is distinct from excluded.configured or r.configured_in_flight is distinct from excluded.configured_in_flight`

// ratesSQL reads the rates of a sink. In: sink. Out: tenant; whether a rate is set; whether it is
// set how many calls may be under way; for how many microseconds the remote wants no calls (null:
// it takes them). A time more than an hour ahead was written while the clock was ahead.
const ratesSQL = `
select r.tenant, coalesce(r.per_second, r.configured) is not null, coalesce(r.in_flight, r.configured_in_flight) is not null,
       case when r.held_until > clock_timestamp() and r.held_until <= clock_timestamp() + interval '1 hour'
            then (extract(epoch from r.held_until - clock_timestamp()) * 1000000)::bigint end
  from onlyonce.rates r where r.sink = $1`

// takePermitsSQL takes permits and a share of the calls that may be under way; see the function's
// comment in the migration. In: sink; relay; number of the question; arrays of one length: tenants,
// how many permits, and of calls under way how many it may have until now and how many it wants.
// Out: tenant, granted, microseconds until there is another, share.
const takePermitsSQL = `select tenant, granted, wait, share from onlyonce.take_permits($1, $2, $3, $4, $5, $6, $7)`

// leaveSharesSQL gives back what a relay may have under way, but for some tenants. In: sink, relay,
// tenants.
const leaveSharesSQL = `delete from onlyonce.shares where sink = $1 and relay = $2 and tenant <> all ($3)`

// holdSQL notes that a remote wants no calls. In: sink; arrays of one length: tenants (empty: the
// sink), for how many microseconds. By the primary key.
const holdSQL = `
insert into onlyonce.rates as r (sink, tenant, held_until)
select $1, h.tenant, clock_timestamp() + h.micros * interval '1 microsecond' from unnest($2::text[], $3::bigint[]) as h(tenant, micros) order by h.tenant
on conflict (sink, tenant) do update
  set held_until = case when r.held_until <= clock_timestamp() + interval '1 hour' then greatest(r.held_until, excluded.held_until) else excluded.held_until end`

// forgetRatesSQL deletes rows that limit nothing, an hour after the remote took calls again. Calls
// that wait name their tenant, and are found without the row. In: sink.
const forgetRatesSQL = `
delete from onlyonce.rates
 where sink = $1 and per_second is null and configured is null and in_flight is null and configured_in_flight is null and set_at is null
   and (held_until < clock_timestamp() - interval '1 hour' or held_until > clock_timestamp() + interval '2 hours')`

// waitingSQL reads for which rates calls of a sink wait, and in which lanes: a row for each pair,
// at most 4,096. In: sink. It reads one entry of the index parked_waits for each pair, however many
// calls wait.
const waitingSQL = `
with recursive w as (
  (select p.waits_for, p.lane from onlyonce.parked p
    where p.sink = $1 and p.waits_for is not null and p.state = 'retrying' and p.next_attempt_at is null order by p.waits_for, p.lane limit 1)
  union all
  select n.* from w cross join lateral (
    select p.waits_for, p.lane from onlyonce.parked p
     where p.sink = $1 and p.waits_for is not null and p.state = 'retrying' and p.next_attempt_at is null and (p.waits_for, p.lane) > (w.waits_for, w.lane)
     order by p.waits_for, p.lane limit 1) n)
select waits_for, lane from w limit 4096`

// permitLife is how long permits that were taken may be used, by the relay's own clock. Those of a
// relay that was stopped lapse.
const permitLife = 500 * time.Millisecond

// Bounds of the wait between two tries to take permits of a rate, if there are none.
const (
	permitRetryMin = 10 * time.Millisecond
	permitRetryMax = time.Second
)

// rateLimit is what a relay knows of the rate of a sink, or of a tenant of it.
type rateLimit struct {
	limited   bool // a rate is set
	heldUntil time.Time
	permits   int
	lapse     time.Time // when the permits do
	wanted    int       // permits that are wanted and not there
	takeAt    time.Time // when to ask the database for them

	share // of the calls that may be under way
}

// needed reports whether calls need permits.
func (l *rateLimit) needed() bool { return l.limited || l.bounded }

// permitted is how many calls there are permits for.
func (l *rateLimit) permitted(now time.Time) int {
	switch {
	case now.Before(l.heldUntil):
		return 0
	case !l.limited:
		return math.MaxInt
	case !now.Before(l.lapse):
		return 0
	}
	return l.permits
}

// available is how many calls may be started beside those that are under way.
func (l *rateLimit) available(now time.Time, underWay int) int {
	n := l.permitted(now)
	if l.bounded {
		n = min(n, max(l.may(now)-underWay, 0))
	}
	return n
}

// relayRates is what a relay knows of the rates of a sink. Its permits are of the buckets in the
// database, which all relays share (O14). It is safe for concurrent use.
type relayRates struct {
	capacity int           // RelayConfig.Concurrency
	shortFor time.Duration // for how long more is wanted than there is, once it was
	relay    uuid.UUID     // names this relay among those that share what may be under way
	mu       sync.Mutex
	// underWay counts the calls of tenants that were permitted and have not returned, and for the
	// empty tenant the slots that are taken.
	underWay  map[string]int
	regained  bool                  // more calls may be started, and lanes that wait are to be woken
	questions int64                 // that were asked
	limits    map[string]*rateLimit // by tenant; the empty one is the sink as a whole
	waiting   map[string]bool       // tenants with calls that wait, in any lane of the sink
	holds     map[string]time.Time  // that are not written yet
	needed    chan struct{}         // holds a token when the sender has something to do
}

func newRelayRates(capacity int, poll time.Duration) *relayRates {
	return &relayRates{capacity: capacity, shortFor: 3 * max(time.Second, poll), relay: uuid.New(), underWay: map[string]int{}, limits: map[string]*rateLimit{}, waiting: map[string]bool{}, holds: map[string]time.Time{}, needed: make(chan struct{}, 1)}
}

func (r *relayRates) signal() {
	select {
	case r.needed <- struct{}{}:
	default:
	}
}

// available is how many calls may be started.
func (r *relayRates) available(tenant string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.limits[tenant]; l != nil {
		return l.available(time.Now(), r.underWay[tenant])
	}
	return math.MaxInt
}

// take takes up to n permits, and returns how many calls may be started: n if there is no rate.
// They count as under way until giveBack or returned.
func (r *relayRates) take(tenant string, n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = max(n, 0)
	if l := r.limits[tenant]; l != nil {
		n = min(n, l.available(time.Now(), r.underWay[tenant]))
		if l.limited {
			l.permits -= n
		}
	}
	r.count(tenant, n)
	return n
}

// follow takes a permit of the sink for a call that takes the place of one that has returned, while
// free other places are about to be given up.
func (r *relayRates) follow(free int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[""]
	if l == nil {
		return true
	}
	if l.available(time.Now(), r.underWay[""]-free-1) == 0 {
		return false
	}
	if l.limited {
		l.permits--
	}
	return true
}

// refund returns the permit of a call of the sink whose place stays taken.
func (r *relayRates) refund() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.limits[""]; l != nil && l.limited {
		l.permits++
	}
}

// giveBack returns permits that were not used.
func (r *relayRates) giveBack(tenant string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.limits[tenant]; l != nil && l.limited {
		l.permits += n
	}
	r.count(tenant, -n)
}

// started notes that a call is under way that needed no permit.
func (r *relayRates) started(tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count(tenant, 1)
}

// returned notes that calls that were permitted are under way no more.
func (r *relayRates) returned(tenant string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count(tenant, -n)
}

// count changes how many calls are under way. The caller has the lock.
func (r *relayRates) count(tenant string, n int) {
	if n == 0 {
		return
	}
	now := r.underWay[tenant] + n
	if now == 0 {
		delete(r.underWay, tenant)
	} else {
		r.underWay[tenant] = now
	}
	l := r.limits[tenant]
	if l == nil || !l.bounded {
		return
	}
	if l.peak = max(l.peak, now); n > 0 {
		return
	}
	if l.owes(now) {
		r.signal() // others wait for what is given up
	}
	if r.waiting[tenant] && l.may(time.Now()) > now {
		r.regained = true
		r.signal()
	}
}

// want asks for permits of a rate that has none: for several calls in each slot, because some are
// quick.
func (r *relayRates) want(tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[tenant]
	if l == nil || time.Now().Before(l.heldUntil) {
		return
	}
	now := time.Now()
	if l.limited && l.permitted(now) == 0 && r.hasPlace(tenant, l, now) {
		l.wanted = 4 * r.capacity
		r.signal()
	}
	if l.bounded && l.may(now) <= r.underWay[tenant] && l.wantMore(now, r.shortFor) {
		r.signal()
	}
}

// hasPlace reports whether permits are of use: without a place among the calls that may be under
// way, they would lapse, and the others have fewer. In the sink a call can follow another one in
// its place. The caller has the lock.
func (r *relayRates) hasPlace(tenant string, l *rateLimit, now time.Time) bool {
	used := r.underWay[tenant]
	if tenant == "" {
		used = 0
	}
	return !l.bounded || l.may(now) > used
}

// held reports whether the remote wants no calls of a tenant, or of the sink.
func (r *relayRates) held(tenant string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[tenant]
	return l != nil && time.Now().Before(l.heldUntil)
}

// mustWait reports whether a new call of a tenant is set aside at once: if others of the tenant
// wait already, or if the remote wants none.
func (r *relayRates) mustWait(tenant string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[tenant]
	return tenant != "" && l != nil && (time.Now().Before(l.heldUntil) || l.needed() && r.waiting[tenant])
}

// noteWaiting notes that new calls of a tenant are to wait.
func (r *relayRates) noteWaiting(tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[tenant] = true
}

// setWaiting notes which tenants have calls that wait.
func (r *relayRates) setWaiting(tenants map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = tenants
}

// limited returns the tenants whose calls need permits, or whom the remote wants no calls of.
func (r *relayRates) limited() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	tenants := []string{} // nil would become NULL
	for t, l := range r.limits {
		if t != "" && (l.needed() || time.Now().Before(l.heldUntil)) {
			tenants = append(tenants, t)
		}
	}
	return tenants
}

// hold notes that a remote wants no calls for a while.
func (r *relayRates) hold(tenant string, d time.Duration) {
	until := time.Now().Add(min(d, maxRetryAfter))
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[tenant]
	if l == nil {
		l = &rateLimit{}
		r.limits[tenant] = l
	}
	if until.After(l.heldUntil) {
		l.heldUntil, r.holds[tenant] = until, until
		r.signal()
	}
}

// storedRate is a row of ratesSQL.
type storedRate struct {
	Tenant  string
	Limited bool
	Bounded bool
	Held    *int64
}

// read takes in the rates that the database has. asked is when it was asked.
func (r *relayRates) read(stored []storedRate, asked time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	limits := map[string]*rateLimit{}
	for _, s := range stored {
		l := r.limits[s.Tenant]
		if l == nil {
			l = &rateLimit{}
		}
		if !s.Bounded {
			l.share = share{}
		}
		l.limited, l.bounded, l.heldUntil = s.Limited, s.Bounded, time.Time{}
		if s.Held != nil {
			l.heldUntil = asked.Add(fromMicros(*s.Held))
		}
		limits[s.Tenant] = l
	}
	for tenant, until := range r.holds { // not written yet
		l := limits[tenant]
		if l == nil {
			l = &rateLimit{}
			limits[tenant] = l
		}
		l.heldUntil = until
	}
	r.limits = limits
}

// permitRequest is what a relay asks of the database: a value for each tenant.
type permitRequest struct {
	number      int64
	tenants     []string
	permits     []int32
	held, wants []int32 // of calls under way: how many it may have until now, and wants to have
}

// add asks for permits of a tenant, and for a share of what may be under way. The caller has the
// lock.
func (q *permitRequest) add(r *relayRates, tenant string, permits int) {
	var held, wants int
	if q.number == 0 {
		r.questions++
		q.number = r.questions
	}
	if l := r.limits[tenant]; l != nil && l.bounded {
		held, wants = l.ask(q.number, time.Now(), r.underWay[tenant], r.capacity)
	}
	q.tenants, q.permits = append(q.tenants, tenant), append(q.permits, int32(permits))
	q.held, q.wants = append(q.held, int32(held)), append(q.wants, int32(wants))
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
	Tenant  string
	Granted int32
	Wait    int64
	Share   *int32
}

// granted takes in what was asked for at a time, and reports whether more calls may be started.
func (r *relayRates) granted(q *permitRequest, grants []permitGrant, asked time.Time) (some bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, t := range q.tenants {
		if l := r.limits[t]; l != nil { // if the rate is gone
			if l.asked = asked; q.permits[i] > 0 {
				l.takeAt = asked.Add(permitRetryMax)
			}
		}
	}
	for _, g := range grants {
		l := r.limits[g.Tenant]
		if l == nil {
			continue
		}
		i := slices.Index(q.tenants, g.Tenant)
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
	return some
}

// takePermits asks the database. A transaction that takes only permits does not wait for its flush:
// a crash gives back what was taken in the last moment. A share that grows has to be flushed,
// because others would get the same places after a crash.
func (s *relaySink) takePermits(ctx context.Context, q *permitRequest) (some bool, err error) {
	if err := fault.Point(fault.RelayPermits); err != nil {
		return false, err
	}
	bounded, cancel := s.detached(ctx)
	defer cancel()
	var grants []permitGrant
	asked := time.Now()
	b := &pgx.Batch{}
	b.Queue(`begin isolation level read committed read write`)
	if !q.grows() {
		b.Queue(`set local synchronous_commit = off`)
	}
	b.Queue(takePermitsSQL, s.name, s.rates.relay, q.number, q.tenants, q.permits, q.held, q.wants).Query(collect(&grants, pgx.RowToStructByPos[permitGrant]))
	b.Queue(`commit`)
	if err := s.pool.SendBatch(bounded, b).Close(); err != nil {
		return false, fmt.Errorf("taking permits of sink %s: %w", s.name, err)
	}
	some = s.rates.granted(q, grants, asked)
	return some, fault.Point(fault.RelayPermitted)
}

// haveReturned reports whether calls have returned for which others wait, since it was asked last.
func (r *relayRates) haveReturned() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	have := r.regained
	r.regained = false
	return have
}

// serveRates writes what remotes have asked for, takes the permits that are wanted, and wakes the
// lanes if more calls may be started.
func (s *sender) serveRates(ctx context.Context) error {
	if err := s.writeHolds(ctx); err != nil {
		return err
	}
	some := s.rates.haveReturned()
	if q := s.rates.due(time.Now()); len(q.tenants) > 0 {
		more, err := s.takePermits(ctx, &q)
		if err != nil {
			return err
		}
		some = some || more
	}
	if !some {
		return nil
	}
	s.slots.signalFree()
	for lane, o := range s.held { // in random order
		o.wake(wakeup{Lane: lane})
	}
	return nil
}

// writeHolds writes what remotes have asked for, so that all relays hold it.
func (s *sender) writeHolds(ctx context.Context) error {
	s.rates.mu.Lock()
	written := map[string]time.Time{}
	var tenants []string
	var micros []int64
	for t, until := range s.rates.holds {
		written[t] = until
		tenants, micros = append(tenants, t), append(micros, max(time.Until(until), 0).Microseconds())
	}
	s.rates.mu.Unlock()
	if len(tenants) == 0 {
		return nil
	}
	bounded, cancel := s.detached(ctx)
	defer cancel()
	if _, err := s.pool.Exec(bounded, holdSQL, s.name, tenants, micros); err != nil {
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

// shares reports whether the relay has asked for shares, and returns the tenants with calls under
// way.
func (r *relayRates) shares() (has bool, busy []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.limits {
		has = has || !l.asked.IsZero()
	}
	return has, slices.AppendSeq([]string{}, maps.Keys(r.underWay))
}

// configureRates writes the rates of RelayConfig.
func (s *sender) configureRates(ctx context.Context) error {
	tenants, rates, inFlight := []string{}, []float64{}, []int32{}
	for _, r := range s.cfg.Rates {
		if r.Sink == s.name {
			tenants, rates, inFlight = append(tenants, r.Tenant), append(rates, r.PerSecond), append(inFlight, int32(r.InFlight))
		}
	}
	if _, err := s.pool.Exec(ctx, configureRatesSQL, s.name, tenants, rates, inFlight); err != nil {
		return fmt.Errorf("setting the rates of sink %s: %w", s.name, err)
	}
	return nil
}

// permitted reports whether the next row of the chunk may be called, and takes the permit of its
// tenant. Without one it sets the row aside, and those of the tenant after it (O14).
func (o *laneOwner) permitted() bool {
	c, rates := o.chunk, o.sink.rates
	a := c.rows[c.next]
	if a.takePermit(rates) {
		return true
	}
	wanted := map[string]int{}
	for _, next := range c.rows[c.next:min(c.next+max(2*o.sink.slots.capacity, 64), len(c.rows))] {
		if next.Tenant != "" && rates.available(next.Tenant) == 0 && !rates.mustWait(next.Tenant) {
			wanted[next.Tenant]++
		}
	}
	if len(wanted) > 0 {
		q := rates.request(wanted)
		some, err := o.sink.takePermits(o.lane.ctx, &q)
		if err != nil {
			o.sink.emit.failed(err, 0) // it waits, as if there were none
		}
		if some {
			rates.wakeOthers()
		}
	}
	if a.takePermit(rates) {
		return true
	}
	rates.noteWaiting(a.Tenant)
	c.setNextAside()
	return false
}

// releasePermit notes that the call is under way no more.
func (a *callAttempt) releasePermit(rates *relayRates) {
	if a.permitted {
		a.permitted = false
		rates.returned(a.Tenant, 1)
	}
}

// takePermit takes the permit of the call's tenant, if it needs one, and reports whether the call
// may be started.
func (a *callAttempt) takePermit(rates *relayRates) bool {
	if a.Tenant == "" {
		return true
	}
	a.permitted = rates.take(a.Tenant, 1) == 1
	return a.permitted
}

// wakeOthers makes the sender wake the lanes: more calls may be started.
func (r *relayRates) wakeOthers() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.regained = true
	r.signal()
}

// request asks for permits of several tenants at once, and for a share of each.
func (r *relayRates) request(wanted map[string]int) (q permitRequest) {
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

// waitsForRate reports whether the sink may start no call now, however many slots are free, and
// asks for permits.
func (s *relaySink) waitsForRate() bool {
	if s.rates.mayStart() {
		return false
	}
	s.rates.want("")
	return true
}

// mayStart reports whether the sink may start calls once one of those that are under way returns.
func (r *relayRates) mayStart() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[""]
	return l == nil || l.available(time.Now(), 0) > 0
}
