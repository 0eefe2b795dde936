package outbox

import (
	"context"
	"fmt"

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
