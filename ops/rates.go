package ops

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/reports"
)

// lockRateSQL locks a rate against other changes of it, relays included. In: sink, whose
// calls.
const lockRateSQL = `select sink from onlyonce.rates where sink = $1 and calls_of = $2 for no key update`

// setRateSQL sets a rate. It ends what the remote has asked for. In: sink; whose calls; calls a
// second and calls under way (null: none is set); reason; actor (null: the role of the connection);
// the stored form of a prefix (null: it is none). By the primary key.
const setRateSQL = `
insert into onlyonce.rates as r (
  sink,
  calls_of,
  order_prefix,
  per_second,
  in_flight,
  set_at,
  set_by,
  reason
)
values (
  $1,
  $2,
  $7,
  $3,
  $6,
  clock_timestamp(),
  coalesce($5::text, current_user),
  $4
)
on conflict (sink, calls_of) do update
    set per_second = excluded.per_second,
        in_flight = excluded.in_flight,
        set_at = excluded.set_at,
        set_by = excluded.set_by,
        reason = excluded.reason,
        held_until = null`

// RateSet is the result of [SetRate].
type RateSet struct {
	Audited

	Sink              string           `json:"sink"`
	Tenant            string           `json:"tenant" doc:"empty: any tenant"`
	OrderingKeyPrefix string           `json:"ordering_key_prefix" doc:"empty: any ordering key, or none"`
	EachTenant        bool             `json:"each_tenant" doc:"of each tenant that has no rate of its own"`
	PerSecond         *float64         `json:"per_second" doc:"that an operator has set now; nil: none"`
	InFlight          *int32           `json:"in_flight" doc:"that an operator has set now; nil: none"`
	Was               reports.SinkRate `json:"was"`
}

// SetRateInput is the input of [SetRate].
type SetRateInput struct {
	// Sink is the name of the sink. It must not be empty.
	Sink string

	// Tenant limits only calls of one tenant. Defaults to empty: all calls of the sink.
	Tenant string

	// EachTenant limits the calls of each tenant that has no rate of its own, separately. Tenant
	// must be empty then. Defaults to false.
	EachTenant bool

	// OrderingKeyPrefix limits only calls whose ordering key begins with it, of any tenant. It ends
	// with its first colon or slash, for example "account-17:". Tenant must be empty then, and
	// EachTenant false. Defaults to empty: all calls of the sink.
	OrderingKeyPrefix string

	// PerSecond is how many calls a second all relays together start: above 0, up to 1,000,000. It
	// replaces the relays' configured rate. Nil leaves an operator's earlier setting.
	PerSecond *float64

	// InFlight is how many calls all relays together have under way at once: 1 to 1,000,000. It
	// replaces the relays' configured number. Nil leaves an operator's earlier setting.
	InFlight *int32

	// Unset removes an operator's settings, so the relays' configuration applies again. PerSecond
	// and InFlight must be nil then. Defaults to false.
	Unset bool

	// Shown is the result of a dry run that a person agreed to. If the resulting rate would differ
	// by now, the error is of kind ErrChanged.
	Shown *RateSet
}

// SetRate sets how many calls a second relays start to a sink, for one of its tenants or each of
// them, or for ordering keys with a prefix, and how many they have under way at once. Relays follow
// within two seconds, also for calls that already wait; running calls continue. A wait that the
// remote has asked for by Retry-After ends.
//
// It returns the new rate and the former one. Errors are of kind ErrNotFound for a sink that no
// relay has listed, and ErrNothing if the rate would not change.
func SetRate(ctx context.Context, db DB, by By, in SetRateInput) (*RateSet, error) {
	k := kind{action: "outbox rate", subject: "the rate", look: "onlyonce outbox status"}
	return decide(ctx, db, k, by, &rating{in}, in.Shown)
}

type rating struct{ SetRateInput }

func (q *rating) check() error { return q.Check() }

// Check returns an error of kind ErrInvalid unless the fields go together.
func (q *SetRateInput) Check() error {
	switch {
	case q.Unset == (q.PerSecond != nil || q.InFlight != nil):
		return failf(ErrInvalid, "give `PerSecond`, `InFlight` or both, or `Unset`")
	case q.PerSecond != nil && !(*q.PerSecond > 0 && *q.PerSecond <= 1e6):
		return failf(ErrInvalid, "the rate must be above 0, and at most 1000000 calls a second")
	case q.InFlight != nil && (*q.InFlight < 1 || *q.InFlight > 1e6):
		return failf(ErrInvalid, "the calls under way must be from 1 to 1000000")
	}
	switch {
	case q.Tenant != "" && q.OrderingKeyPrefix != "", q.EachTenant && (q.Tenant != "" || q.OrderingKeyPrefix != ""):
		return failf(ErrInvalid, "give one of `Tenant`, `EachTenant` and `OrderingKeyPrefix`")
	case q.Tenant == "*":
		return failf(ErrInvalid, "`Tenant`: %q is no name of a tenant: `EachTenant` limits each of them", q.Tenant)
	}
	if p := q.OrderingKeyPrefix; p != "" {
		if err := checkText("`OrderingKeyPrefix`", p); err != nil {
			return err
		}
		if len(p) > 255 {
			return failf(ErrInvalid, "`OrderingKeyPrefix`: %d bytes are more than 255", len(p))
		}
		if codec.PrefixOf(p) != p {
			return failf(ErrInvalid, "`OrderingKeyPrefix` %q must end with its first colon or slash, for example %q",
				p, "account-17:")
		}
	}
	if q.Tenant != "" {
		if err := checkText("`Tenant`", q.Tenant); err != nil {
			return err
		}
	}
	return checkText("`Sink`", q.Sink)
}

func (q *rating) lock(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, lockRateSQL, q.Sink, q.callsOf())
	return err
}

func (q *rating) read(ctx context.Context, tx pgx.Tx) (*RateSet, error) {
	sinks, err := reports.Collect[Sink](ctx, tx, sinkSQL, q.Sink)
	if err != nil {
		return nil, err
	}
	if len(sinks) == 0 {
		return nil, unknownSink(ctx, tx, q.Sink)
	}
	of := q.callsOf()
	rates, err := reports.Rates(ctx, tx, &q.Sink, &of)
	if err != nil {
		return nil, err
	}
	r := &reports.SinkRate{
		Sink:              q.Sink,
		Tenant:            q.Tenant,
		EachTenant:        q.EachTenant,
		OrderingKeyPrefix: q.OrderingKeyPrefix,
	}
	if len(rates) > 0 {
		r = &rates[0]
	}
	set := &RateSet{
		Sink:              q.Sink,
		Tenant:            q.Tenant,
		EachTenant:        q.EachTenant,
		OrderingKeyPrefix: q.OrderingKeyPrefix,
		PerSecond:         q.PerSecond,
		InFlight:          q.InFlight,
		Was:               *r,
	}
	if !q.Unset && set.PerSecond == nil {
		set.PerSecond = r.PerSecond
	}
	if !q.Unset && set.InFlight == nil {
		set.InFlight = r.InFlight
	}
	switch same := equal(set.PerSecond, r.PerSecond) && equal(set.InFlight, r.InFlight) && r.HeldUntil == nil; {
	case same && q.Unset:
		return nil, failf(ErrNothing, "No rate was set for it: nothing was changed.")
	case same:
		return nil, failf(ErrNothing, "Its rate is that already: nothing was changed.")
	}
	return set, nil
}

// differs reports whether the confirmed rate would no longer be the one set: a bound that is not
// given comes from the rate in force. The rate that it replaces does not matter.
func (q *rating) differs(shown, now *RateSet) bool {
	return !equal(shown.PerSecond, now.PerSecond) || !equal(shown.InFlight, now.InFlight)
}

func (q *rating) do(ctx context.Context, tx pgx.Tx, by By, now *RateSet) (*RateSet, error) {
	var prefix *int64
	if q.OrderingKeyPrefix != "" {
		prefix = new(codec.OrderPrefix(q.Sink, q.OrderingKeyPrefix))
	}
	_, err := tx.Exec(ctx, setRateSQL, q.Sink, q.callsOf(), now.PerSecond, by.Reason, by.actor(), now.InFlight, prefix)
	return now, err
}

func (q *rating) callsOf() string { return codec.CallsOf(q.OrderingKeyPrefix, q.Tenant, q.EachTenant) }

// equal reports whether two values are the same, or both nil.
func equal[T comparable](a, b *T) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}
