package reports

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/show"
)

// sinkRatesSQL lists rates, and for which rates calls wait. In: sink, whose calls (each may be
// null: any). The calls that wait are counted by the index parked_waits. Tenants without a rate of
// their own are added up in that of each tenant, if there is one.
const sinkRatesSQL = `
with own as materialized (
  select *
    from onlyonce.rates
   where ($1::text is null or sink = $1)
     and coalesce(configured, per_second, configured_in_flight, in_flight) is not null),
r as materialized (
  select * from own union all
  select *
    from onlyonce.rates
   where ($1::text is null or sink = $1)
     and coalesce(configured, per_second, configured_in_flight, in_flight) is null
     and (held_until > clock_timestamp() or set_at is not null)),
u as (
  select sink, waits_for as used_by, 0 as share, count(*) as calls from onlyonce.parked
   where waits_for is not null and state = 'retrying' and next_attempt_at is null and ($1::text is null or sink = $1)
   group by 1, 2
  union all
  select sink, calls_of, share, 0
    from onlyonce.shares where until > clock_timestamp() and ($1::text is null or sink = $1)),
w as (
  select u.sink,
         coalesce(e.calls_of, u.used_by) as calls_of,
         sum(u.share)::bigint as taken,
         sum(u.calls)::bigint as calls
    from u left join own e on e.calls_of = 'tenants' and e.sink = u.sink and u.used_by like 'tenant %' and not exists (
           select from own o where o.sink = u.sink and o.calls_of = u.used_by) group by 1, 2)
select x.sink,
       case when x.calls_of like 'tenant %' then substr(x.calls_of, 8) else '' end as tenant,
       case when x.calls_of like 'key %' then substr(x.calls_of, 5) else '' end as ordering_key_prefix,
       x.calls_of = 'tenants' as each_tenant,
       r.configured,
       r.per_second,
       r.configured_in_flight,
       r.in_flight,
       coalesce(w.taken, 0) as taken,
       r.set_at,
       r.set_by,
       r.reason,
       case when r.held_until > clock_timestamp()
              and r.held_until <= clock_timestamp() + interval '1 hour' then r.held_until end as held_until,
       r.held_why,
       coalesce(w.calls, 0) as waiting
  from r full join w on w.sink = r.sink and w.calls_of = r.calls_of
 cross join lateral (select coalesce(r.sink, w.sink) as sink, coalesce(r.calls_of, w.calls_of) as calls_of) x
 where ($2::text is null or x.calls_of = $2)
   and (coalesce(r.configured, r.per_second, r.configured_in_flight, r.in_flight) is not null
        or r.held_until > clock_timestamp()
        or w.calls > 0)
 order by x.sink, x.calls_of`

// SinkRate is the rate of a sink, of one of its tenants or each of them, or of ordering keys with a
// prefix.
type SinkRate struct {
	Sink              string   `json:"sink"`
	Tenant            string   `json:"tenant" doc:"empty: any tenant"`
	OrderingKeyPrefix string   `json:"ordering_key_prefix" doc:"empty: any ordering key, or none"`
	EachTenant        bool     `json:"each_tenant" doc:"of each tenant that has no rate of its own"`
	Configured        *float64 `json:"configured" doc:"calls a second, by RelayConfig.Rates; nil: none"`
	PerSecond         *float64 `json:"per_second" doc:"set by an operator, counts instead; nil: none"`

	ConfiguredInFlight *int32 `json:"configured_in_flight" doc:"calls under way, by RelayConfig.Rates; nil: none"`
	InFlight           *int32 `json:"in_flight" doc:"set by an operator, counts instead; nil: none"`
	Taken              int64  `json:"taken" doc:"how many of them relays have or may have under way"`

	SetAt     *time.Time `json:"set_at" doc:"when an operator last decided; nil: never"`
	SetBy     *string    `json:"set_by"`
	Reason    *string    `json:"reason"`
	HeldUntil *time.Time `json:"held_until" doc:"relays start none of its calls before; nil: they do"`
	// why, for example the breaker; nil: the remote has asked for it (Retry-After)
	HeldWhy *string `json:"held_why" doc:"above"`
	Waiting int64   `json:"waiting" doc:"calls that are set aside until the rate allows them"`
}

// Now is the rate that counts, in calls a second, or nil if there is none.
func (r *SinkRate) Now() *float64 {
	if r.PerSecond != nil {
		return r.PerSecond
	}
	return r.Configured
}

// NowInFlight is the number of calls under way that counts, or nil if there is none.
func (r *SinkRate) NowInFlight() *int32 {
	if r.InFlight != nil {
		return r.InFlight
	}
	return r.ConfiguredInFlight
}

// String describes the rate and what waits for it.
func (r *SinkRate) String() string {
	var limits []string
	if n := r.Now(); n != nil {
		limits = append(limits, decimal(*n)+" calls a second"+by(r.PerSecond == nil))
	}
	if n := r.NowInFlight(); n != nil {
		limits = append(
			limits,
			fmt.Sprintf("%d under way at once, of which %d are taken%s", *n, r.Taken, by(r.InFlight == nil)),
		)
	}
	text := "no rate"
	if len(limits) > 0 {
		text = strings.Join(limits, "; ")
	}
	if r.PerSecond != nil || r.InFlight != nil {
		text += fmt.Sprintf(", set by %s at %s: %s",
			show.OrDash(r.SetBy), show.Instant(*r.SetAt), show.OrDash(r.Reason))
	}
	if r.HeldUntil != nil {
		text += "; " + r.Hold()
	}
	if r.Waiting > 0 {
		text += fmt.Sprintf("; %d calls wait", r.Waiting)
	}
	return text
}

// Hold says until when its calls wait, and who asked for that; empty: they do not.
func (r *SinkRate) Hold() string {
	switch {
	case r.HeldUntil == nil:
		return ""
	case r.HeldWhy != nil:
		return fmt.Sprintf("calls are held until %s: %s", show.Instant(*r.HeldUntil), *r.HeldWhy)
	}
	return fmt.Sprintf("the remote asked for no calls until %s (Retry-After)", show.Instant(*r.HeldUntil))
}

// Whose names the calls that the rate is for.
func (r *SinkRate) Whose() string {
	switch {
	case r.OrderingKeyPrefix != "":
		return "sink " + r.Sink + ", ordering keys " + r.OrderingKeyPrefix + "..."
	case r.Tenant != "":
		return "sink " + r.Sink + ", tenant " + r.Tenant
	case r.EachTenant:
		return "sink " + r.Sink + ", each tenant"
	}
	return "sink " + r.Sink
}

// Of says which of the sink's calls the rate is for, if not for all.
func (r *SinkRate) Of() string {
	switch {
	case r.OrderingKeyPrefix != "":
		return fmt.Sprintf(", ordering keys with the prefix %q", r.OrderingKeyPrefix)
	case r.Tenant != "":
		return fmt.Sprintf(", tenant %q", r.Tenant)
	case r.EachTenant:
		return ", each tenant"
	}
	return ""
}

// by says whose a limit is, unless an operator has set it.
func by(configured bool) string {
	if configured {
		return ", by the relays' configuration"
	}
	return ""
}

func decimal(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

// Rates lists the rates of a sink, or of one of its tenants or prefixes; nil: of all.
func Rates(ctx context.Context, tx pgx.Tx, sink, callsOf *string) ([]SinkRate, error) {
	return Collect[SinkRate](ctx, tx, sinkRatesSQL, sink, callsOf)
}
