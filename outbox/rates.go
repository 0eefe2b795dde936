package outbox

import (
	"context"
	"fmt"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/fields"
)

// Rate limits the calls that all relays together start a second and have under way at once: to a
// sink, for one of its tenants, or for ordering keys with a prefix.
//
// A call counts for the rate of its sink, and for one more at most: for that of its ordering key's
// prefix if there is one, or else for its tenant's.
//
// The calls of a tenant or a prefix that are over its rate are set aside: they wait in
// onlyonce.parked, in the order in which they came, and hold up no other calls of their lane. The
// calls of a sink that is over its rate stay in the log. Neither begins the window of a key, or
// counts as an attempt.
//
// An operator can set another rate with `onlyonce outbox rate`, which counts instead of this one.
type Rate struct {
	// Sink is the name of one of RelayConfig.Sinks. Required.
	Sink string

	// Tenant limits only the calls of one tenant. Defaults to empty: all calls of the sink.
	Tenant string

	// OrderingKeyPrefix limits only calls whose Call.OrderingKey begins with it, of any tenant. It
	// ends with its first colon or slash, because a stored call has only that part of its ordering
	// key: for example "account-17:". At most 255 bytes. Tenant must be empty then. Defaults to
	// empty: calls with any ordering key, and those without one.
	OrderingKeyPrefix string

	// PerSecond is how many calls a second are started: above 0, up to 1,000,000. For example, 0.1
	// is one call in 10 s. It is counted in the database, half a second's worth at a time: in any T
	// seconds at most PerSecond * (T + 1) calls are started, or one more if PerSecond is below 2.
	// Each attempt counts, and so do retries. Defaults to 0: no limit, if InFlight has one.
	PerSecond float64

	// InFlight is how many calls are under way at once: from 1 to 1,000,000. For example, 4 for a
	// remote that takes four connections. Relays share them evenly, and those that one does not
	// need go to the others. Calls of a relay that died count for 10 s. Defaults to 0: no limit, if
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
		checkText(l, field+".OrderingKeyPrefix", r.OrderingKeyPrefix)
		switch p := r.OrderingKeyPrefix; {
		case p != "" && codec.PrefixOf(p) != p:
			l.Add(field+".OrderingKeyPrefix", "%q must end with its first colon or slash, for example %q", p, "account-17:")
		case p != "" && r.Tenant != "":
			l.Add(field, "must not have both Tenant and OrderingKeyPrefix")
		}
		switch {
		case r.PerSecond == 0 && r.InFlight == 0:
			l.Add(field, "must have PerSecond, InFlight, or both")
		case !(r.PerSecond >= 0 && r.PerSecond <= maxRate):
			l.Add(field+".PerSecond", "must be above 0, and at most %d", int(maxRate))
		case r.InFlight < 0 || r.InFlight > maxRate:
			l.Add(field+".InFlight", "must be from 1 to %d", int(maxRate))
		}
		id := Rate{Sink: r.Sink, Tenant: r.Tenant, OrderingKeyPrefix: r.OrderingKeyPrefix}
		if seen[id] {
			l.Add(field, "a second rate of sink %q, tenant %q and prefix %q", r.Sink, r.Tenant, r.OrderingKeyPrefix)
		}
		seen[id] = true
	}
}

// maxRate is the largest rate, in calls a second, and the largest number of calls under way.
const maxRate = 1e6

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

// ratesSQL reads the rates of a sink. In: sink. Out: whose calls; the stored form of a prefix
// (null: it is none); whether a rate is set; whether it is set how many calls may be under way; for
// how many microseconds the remote wants no calls (null: it takes them). A time more than an hour
// ahead was written while the clock was ahead.
const ratesSQL = `
select r.calls_of, r.order_prefix, coalesce(r.per_second, r.configured) is not null, coalesce(r.in_flight, r.configured_in_flight) is not null,
       case when r.held_until > clock_timestamp() and r.held_until <= clock_timestamp() + interval '1 hour'
            then (extract(epoch from r.held_until - clock_timestamp()) * 1000000)::bigint end
  from onlyonce.rates r where r.sink = $1`

// forgetRatesSQL deletes rows that limit nothing, an hour after the remote took calls again. Calls
// that wait say whose rate it is, and are found without the row. In: sink.
const forgetRatesSQL = `
delete from onlyonce.rates
 where sink = $1 and per_second is null and configured is null and in_flight is null and configured_in_flight is null and set_at is null
   and (held_until < clock_timestamp() - interval '1 hour' or held_until > clock_timestamp() + interval '2 hours')`

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

// configureRates writes the rates of RelayConfig.
func (s *sender) configureRates(ctx context.Context) error {
	all, prefixes, rates, inFlight := []string{}, []int64{}, []float64{}, []int32{}
	for _, r := range s.cfg.Rates {
		if r.Sink != s.name {
			continue
		}
		var prefix int64
		if r.OrderingKeyPrefix != "" {
			prefix = codec.OrderPrefix(s.name, r.OrderingKeyPrefix)
		}
		all, prefixes = append(all, callsOf{tenant: r.Tenant, prefix: r.OrderingKeyPrefix}.stored()), append(prefixes, prefix)
		rates, inFlight = append(rates, r.PerSecond), append(inFlight, int32(r.InFlight))
	}
	if _, err := s.pool.Exec(ctx, configureRatesSQL, s.name, all, prefixes, rates, inFlight); err != nil {
		return fmt.Errorf("setting the rates of sink %s: %w", s.name, err)
	}
	return nil
}
