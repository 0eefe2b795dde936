package outbox

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/fields"
)

// Rate is how many calls a second relays start, all of them together, to a sink or for one of its
// tenants. It is counted in the database, half a second's worth at a time: in any T seconds at most
// PerSecond * (T + 1) calls are started, or one more if PerSecond is below 2. Each attempt counts,
// and so do retries.
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
	// is one call in 10 s. Required.
	PerSecond float64
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
		if !(r.PerSecond > 0 && r.PerSecond <= maxRate) {
			l.Add(field, "PerSecond must be above 0, and at most %d", int(maxRate))
		}
		id := Rate{Sink: r.Sink, Tenant: r.Tenant}
		if seen[id] {
			l.Add(field, "a second rate of sink %q and tenant %q", r.Sink, r.Tenant)
		}
		seen[id] = true
	}
}

// maxRate is the largest rate, in calls a second.
const maxRate = 1e6

// configureRatesSQL writes the rates of a sink that a relay is configured with, and forgets those
// that it is not. In: sink; arrays of one length: tenants, rates. By the primary key; it locks no
// row that stays as it is.
const configureRatesSQL = `
with c as materialized (select * from unnest($2::text[], $3::float8[]) as c(tenant, rate)),
gone as (update onlyonce.rates r set configured = null where r.sink = $1 and r.configured is not null and r.tenant not in (select tenant from c))
insert into onlyonce.rates as r (sink, tenant, configured) select $1, tenant, rate from c order by tenant
on conflict (sink, tenant) do update set configured = excluded.configured where r.configured is distinct from excluded.configured`

// ratesSQL reads the rates of a sink. In: sink. Out: tenant, whether a rate is set, for how many
// microseconds the remote wants no calls (null: it takes them). A time more than an hour ahead was
// written while the clock was ahead.
const ratesSQL = `
select r.tenant, coalesce(r.per_second, r.configured) is not null,
       case when r.held_until > clock_timestamp() and r.held_until <= clock_timestamp() + interval '1 hour'
            then (extract(epoch from r.held_until - clock_timestamp()) * 1000000)::bigint end
  from onlyonce.rates r where r.sink = $1`

// takePermitsSQL takes permits; see the function's comment in the migration. In: sink; arrays of
// one length: tenants, how many. Out: tenant, granted, microseconds until there is another.
const takePermitsSQL = `select tenant, granted, wait from onlyonce.take_permits($1, $2, $3)`

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
 where sink = $1 and per_second is null and configured is null and set_at is null
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
}

func (l *rateLimit) available(now time.Time) int {
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

// relayRates is what a relay knows of the rates of a sink. Its permits are of the buckets in the
// database, which all relays share (O14). It is safe for concurrent use.
type relayRates struct {
	capacity int // RelayConfig.Concurrency
	mu       sync.Mutex
	limits   map[string]*rateLimit // by tenant; the empty one is the sink as a whole
	waiting  map[string]bool       // tenants with calls that wait, in any lane of the sink
	holds    map[string]time.Time  // that are not written yet
	needed   chan struct{}         // holds a token when the sender has something to do
}

func newRelayRates(capacity int) *relayRates {
	return &relayRates{capacity: capacity, limits: map[string]*rateLimit{}, waiting: map[string]bool{}, holds: map[string]time.Time{}, needed: make(chan struct{}, 1)}
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
		return l.available(time.Now())
	}
	return math.MaxInt
}

// take takes up to n permits, and returns how many calls may be started: n if there is no rate.
func (r *relayRates) take(tenant string, n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[tenant]
	if l == nil || n <= 0 {
		return max(n, 0)
	}
	n = min(n, l.available(time.Now()))
	if l.limited {
		l.permits -= n
	}
	return n
}

// giveBack returns permits that were not used.
func (r *relayRates) giveBack(tenant string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.limits[tenant]; l != nil && l.limited {
		l.permits += n
	}
}

// want asks for permits of a rate that has none: for several calls in each slot, because some are
// quick.
func (r *relayRates) want(tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[tenant]
	if l == nil || !l.limited || time.Now().Before(l.heldUntil) {
		return
	}
	l.wanted = 4 * r.capacity
	r.signal()
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
	return tenant != "" && l != nil && (time.Now().Before(l.heldUntil) || l.limited && r.waiting[tenant])
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
		if t != "" && (l.limited || time.Now().Before(l.heldUntil)) {
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
		l.limited, l.heldUntil = s.Limited, time.Time{}
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

// due returns the permits to ask for now, and when to ask next if there are none; zero: never.
func (r *relayRates) due(now time.Time) (tenants []string, wanted []int32, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for t, l := range r.limits {
		switch {
		case l.wanted == 0 || !l.limited:
		case !now.Before(l.takeAt):
			tenants, wanted = append(tenants, t), append(wanted, int32(l.wanted))
		case next.IsZero() || l.takeAt.Before(next):
			next = l.takeAt
		}
	}
	if len(r.holds) > 0 {
		next = now
	}
	return tenants, wanted, next
}

// permitGrant is a row of takePermitsSQL.
type permitGrant struct {
	Tenant  string
	Granted int32
	Wait    int64
}

// granted takes in permits that were asked for at a time, and reports whether there are any.
func (r *relayRates) granted(tenants []string, grants []permitGrant, asked time.Time) (some bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range tenants {
		if l := r.limits[t]; l != nil {
			l.takeAt = asked.Add(permitRetryMax) // if the rate is gone
		}
	}
	for _, g := range grants {
		l := r.limits[g.Tenant]
		if l == nil {
			continue
		}
		if !asked.Before(l.lapse) {
			l.permits = 0
		}
		l.takeAt = asked.Add(min(max(fromMicros(g.Wait), permitRetryMin), permitRetryMax))
		if g.Granted > 0 {
			l.permits, l.lapse, l.wanted, some = l.permits+int(g.Granted), asked.Add(permitLife), 0, true
		}
	}
	return some
}

// takePermits takes permits out of the buckets in the database. The transaction does not wait for
// its flush: a crash gives back what was taken in the last moment.
func (s *relaySink) takePermits(ctx context.Context, tenants []string, wanted []int32) (some bool, err error) {
	if err := fault.Point(fault.RelayPermits); err != nil {
		return false, err
	}
	bounded, cancel := s.detached(ctx)
	defer cancel()
	var grants []permitGrant
	asked := time.Now()
	b := &pgx.Batch{}
	b.Queue(`begin isolation level read committed read write`)
	b.Queue(`set local synchronous_commit = off`)
	b.Queue(takePermitsSQL, s.name, tenants, wanted).Query(collect(&grants, pgx.RowToStructByPos[permitGrant]))
	b.Queue(`commit`)
	if err := s.pool.SendBatch(bounded, b).Close(); err != nil {
		return false, fmt.Errorf("taking permits of sink %s: %w", s.name, err)
	}
	some = s.rates.granted(tenants, grants, asked)
	return some, fault.Point(fault.RelayPermitted)
}

// serveRates writes what remotes have asked for, takes the permits that are wanted, and wakes the
// lanes if there are any.
func (s *sender) serveRates(ctx context.Context) error {
	if err := s.writeHolds(ctx); err != nil {
		return err
	}
	tenants, wanted, _ := s.rates.due(time.Now())
	if len(tenants) == 0 {
		return nil
	}
	some, err := s.takePermits(ctx, tenants, wanted)
	if err != nil || !some {
		return err
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

// configureRates writes the rates of RelayConfig.
func (s *sender) configureRates(ctx context.Context) error {
	tenants, rates := []string{}, []float64{}
	for _, r := range s.cfg.Rates {
		if r.Sink == s.name {
			tenants, rates = append(tenants, r.Tenant), append(rates, r.PerSecond)
		}
	}
	if _, err := s.pool.Exec(ctx, configureRatesSQL, s.name, tenants, rates); err != nil {
		return fmt.Errorf("setting the rates of sink %s: %w", s.name, err)
	}
	return nil
}

// permitted reports whether the next row of the chunk may be called, and takes the permit of its
// tenant. Without one it sets the row aside, and those of the tenant after it (O14).
func (o *laneOwner) permitted() bool {
	c, rates := o.chunk, o.sink.rates
	a := c.rows[c.next]
	if a.Tenant == "" || rates.take(a.Tenant, 1) == 1 {
		return true
	}
	wanted := map[string]int{}
	for _, next := range c.rows[c.next:min(c.next+max(2*o.sink.slots.capacity, 64), len(c.rows))] {
		if next.Tenant != "" && rates.available(next.Tenant) == 0 && !rates.mustWait(next.Tenant) {
			wanted[next.Tenant]++
		}
	}
	if len(wanted) > 0 {
		tenants, counts := columnsOf(wanted)
		if _, err := o.sink.takePermits(o.lane.ctx, tenants, counts); err != nil {
			o.sink.emit.failed(err, 0) // it waits, as if there were none
		}
	}
	if rates.take(a.Tenant, 1) == 1 {
		return true
	}
	rates.noteWaiting(a.Tenant)
	c.setNextAside()
	return false
}

// waitsForRate reports whether the sink's rate has no permit now, and asks for some.
func (s *relaySink) waitsForRate() bool {
	if s.rates.available("") > 0 {
		return false
	}
	s.rates.want("")
	return true
}
