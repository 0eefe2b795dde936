package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/outbox/internal/gate"
)

// takePermitsSQL takes permits and a share of the calls that may be under way; see the function's
// comment in the migration. Those after @question are arrays of one length: whose calls, how
// many permits, and of calls under way how many it may have until now and how many it wants. Out:
// whose calls, granted, microseconds until there is another, share.
var takePermitsSQL = newStatement(`
select calls_of, granted, wait, share from onlyonce.take_permits(
  sink => @sink,
  relay => @relay,
  asked => @question,
  limits => @calls_of,
  wanted => @permits,
  held => @held,
  wants => @wants
)`)

// leaveSharesSQL gives back what a relay may have under way, except for some calls. In: sink,
// relay, whose.
const leaveSharesSQL = `delete from onlyonce.shares where sink = $1 and relay = $2 and calls_of <> all ($3)`

// holdSQL notes that calls of a tenant or of the sink wait. In: sink; arrays of one length: whose,
// for how many microseconds, why (empty: the remote asks for it). By the primary key.
const holdSQL = `
insert into onlyonce.rates as r (sink, calls_of, held_until, held_why)
select $1, h.calls_of, clock_timestamp() + h.micros * interval '1 microsecond', nullif(h.why, '')
  from unnest($2::text[], $3::bigint[], $4::text[]) as h(calls_of, micros, why)
 order by h.calls_of collate "C"
on conflict (sink, calls_of) do update
  set held_until = case when r.held_until <= clock_timestamp() + interval '1 hour'
                          then greatest(r.held_until, excluded.held_until)
                        else excluded.held_until end,
      held_why = excluded.held_why`

// configureRatesSQL writes the rates of a sink that a relay is configured with, and clears the
// others. In: sink; arrays of one length: whose calls, the stored form of a prefix (0: it is none),
// rates, calls under way (0: no limit). By the primary key; it locks no row that stays as it is.
const configureRatesSQL = `
with c as materialized (
  select calls_of, nullif(prefix, 0) as prefix, nullif(rate, 0) as rate, nullif(in_flight, 0) as in_flight
                          from unnest(
                            $2::text[],
                            $3::bigint[],
                            $4::float8[],
                            $5::int[]
                          ) as c(calls_of, prefix, rate, in_flight)),
gone as (update onlyonce.rates r set configured = null, configured_in_flight = null
          where r.sink = $1
            and (r.configured is not null or r.configured_in_flight is not null)
            and r.calls_of not in (select calls_of from c))
insert into onlyonce.rates as r (
  sink,
  calls_of,
  order_prefix,
  configured,
  configured_in_flight
)
  select $1,
         calls_of,
         prefix,
         rate,
         in_flight
    from c order by calls_of collate "C"
on conflict (sink, calls_of) do update
     set configured = excluded.configured, configured_in_flight = excluded.configured_in_flight
  where r.configured is distinct from excluded.configured
    or r.configured_in_flight is distinct from excluded.configured_in_flight`

// ratesSQL reads the rates of a sink, by the index rates_limits. In: sink. Out: whose calls; the
// stored form of a prefix (null: it is none); whether a rate is set; whether it is set how many
// calls may be under way; for how many microseconds the remote wants no calls (null: it takes
// them). A time more than an hour ahead was written while the clock was ahead.
const ratesSQL = `
select r.calls_of,
       r.order_prefix,
       coalesce(r.per_second, r.configured) is not null,
       coalesce(r.in_flight, r.configured_in_flight) is not null,
       case when r.held_until > clock_timestamp() and r.held_until <= clock_timestamp() + interval '1 hour'
            then (extract(epoch from r.held_until - clock_timestamp()) * 1000000)::bigint end
  from onlyonce.rates r
 where r.sink = $1
   and (r.per_second is not null
        or r.configured is not null
        or r.in_flight is not null
        or r.configured_in_flight is not null
        or r.held_until is not null)`

// forgetRatesSQL deletes rows that limit nothing, an hour after the remote took calls again, and
// buckets of tenants by [Rate].EachTenant that are full, after an hour. Calls that wait say whose
// rate it is, and are found without the row. It deletes shares too that ended an hour ago: a relay
// that died does not give its own back, and nobody asks for one of a tenant without calls. In:
// sink.
const forgetRatesSQL = `
with dead as (delete from onlyonce.shares where sink = $1 and until < clock_timestamp() - interval '1 hour')
delete from onlyonce.rates
 where sink = $1
   and per_second is null
   and configured is null
   and in_flight is null
   and configured_in_flight is null
   and set_at is null
   and (held_until is null
        or held_until < clock_timestamp() - interval '1 hour'
        or held_until > clock_timestamp() + interval '2 hours')
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
    where p.sink = $1
      and p.waits_for is not null
      and p.state = 'retrying'
      and p.next_attempt_at is null
      and (p.waits_for, p.lane) > ($2, $3::smallint)
    order by p.waits_for, p.lane limit 1)
  union all
  select n.* from w cross join lateral (
    select p.waits_for, p.lane from onlyonce.parked p
     where p.sink = $1
       and p.waits_for is not null
       and p.state = 'retrying'
       and p.next_attempt_at is null
       and (p.waits_for, p.lane) > (w.waits_for, w.lane)
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

// permitGrant is a row of takePermitsSQL.
type permitGrant struct {
	CallsOf string
	Granted int32
	Wait    int64
	Share   *int32
}

// ask sends the gate's question to the database, and the answer to the gate. A transaction that
// takes only permits does not wait for its flush: a crash gives back what was taken in the last
// moment. A share that grows has to be flushed. If the answer is lost, the gate asks anew, and what
// the database gave lapses there.
func (s *relaySink) ask(ctx context.Context, q gate.Question) error {
	bounded, cancel := s.detached(ctx)
	defer cancel()
	var rows []permitGrant
	asked := time.Now()
	b := &pgx.Batch{}
	b.Queue(`begin isolation level read committed`)
	b.Queue(primary.PinSQL)
	if !q.Grows() {
		b.Queue(`set local synchronous_commit = off`)
	}
	takePermitsSQL.queue(b, s.questionArgs(q)).Query(collect(&rows, pgx.RowToStructByPos[permitGrant]))
	b.Queue(`commit`)
	if err := s.pool.SendBatch(bounded, b).Close(); err != nil {
		return fmt.Errorf("taking permits of sink %s: %w", s.name, err)
	}
	grants := make([]gate.Grant, len(rows))
	for i, row := range rows {
		grants[i] = gate.Grant{Key: parseCallsOf(row.CallsOf), Permits: int(row.Granted), Wait: fromMicros(row.Wait)}
		if row.Share != nil {
			grants[i].Share = int(*row.Share)
			grants[i].Shared = true
		}
	}
	s.gate.Answer(q, grants, asked)
	return nil
}

// questionArgs are the parameters of takePermitsSQL.
func (s *relaySink) questionArgs(q gate.Question) pgx.NamedArgs {
	n := len(q.Parts)
	callsOf := make([]string, n)
	permits := make([]int32, n)
	held := make([]int32, n)
	wants := make([]int32, n)
	for i, p := range q.Parts {
		callsOf[i] = storedCallsOf(p.Key)
		permits[i] = int32(p.Permits)
		held[i] = int32(p.Held)
		wants[i] = int32(p.Wants)
	}
	return pgx.NamedArgs{
		"sink": s.name, "relay": s.relay, "question": q.Number,
		"calls_of": callsOf, "permits": permits, "held": held, "wants": wants,
	}
}

// writeHolds writes which calls wait, so that all relays hold them.
func (s *relaySink) writeHolds(ctx context.Context) error {
	holds := s.gate.Unwritten()
	if len(holds) == 0 {
		return nil
	}
	var all, reasons []string
	var micros []int64
	for _, h := range holds {
		all = append(all, storedCallsOf(h.Key))
		micros = append(micros, max(time.Until(h.Until), 0).Microseconds())
		reasons = append(reasons, h.Why)
	}
	bounded, cancel := s.detached(ctx)
	defer cancel()
	if _, err := s.pool.Exec(bounded, holdSQL, s.name, all, micros, reasons); err != nil {
		return fmt.Errorf("recording that calls of sink %s wait: %w", s.name, err)
	}
	s.gate.Written(holds)
	return nil
}

// leaveShares gives back what this relay may have under way, except for calls that are: a sink may
// not have returned them. If that fails, it ends by itself.
func (s *relaySink) leaveShares(ctx context.Context) {
	asked, busy := s.gate.AskedForShares()
	if !asked {
		return
	}
	kept := []string{} // nil would become NULL
	for _, k := range busy {
		kept = append(kept, storedCallsOf(k))
	}
	_, _ = s.pool.Exec(ctx, leaveSharesSQL, s.name, s.relay, kept)
}

// storedRate is a row of ratesSQL.
type storedRate struct {
	CallsOf string
	Prefix  *int64
	Limited bool
	Bounded bool
	Held    *int64
}

// setRates gives the gate the rates that the database had when it was asked.
func (s *relaySink) setRates(rows []storedRate, asked time.Time) {
	limits := make([]gate.Limit, len(rows))
	for i, r := range rows {
		limits[i] = gate.Limit{Key: parseCallsOf(r.CallsOf), Rated: r.Limited, Shared: r.Bounded}
		if r.Prefix != nil {
			limits[i].Prefix = *r.Prefix
		}
		if r.Held != nil {
			limits[i].Held = fromMicros(*r.Held)
		}
	}
	s.gate.SetLimits(limits, asked)
}

// configureRates writes the rates of RelayConfig.
func (s *relaySink) configureRates(ctx context.Context) error {
	all := []string{}
	prefixes := []int64{}
	rates := []float64{}
	inFlight := []int32{}
	for _, r := range s.cfg.Rates {
		if r.Sink != s.name {
			continue
		}
		var prefix int64
		if r.OrderingKeyPrefix != "" {
			prefix = codec.OrderPrefix(s.name, r.OrderingKeyPrefix)
		}
		all = append(all, storedCallsOf(gate.Key{Tenant: r.Tenant, Prefix: r.OrderingKeyPrefix, Each: r.EachTenant}))
		prefixes = append(prefixes, prefix)
		rates = append(rates, r.PerSecond)
		inFlight = append(inFlight, int32(r.InFlight))
	}
	if _, err := s.pool.Exec(ctx, configureRatesSQL, s.name, all, prefixes, rates, inFlight); err != nil {
		return fmt.Errorf("setting the rates of sink %s: %w", s.name, err)
	}
	return nil
}
