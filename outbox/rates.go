package outbox

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/outbox/internal/gate"
)

// Rate limits the calls that all relays together start a second and have under way at once: to a
// sink, for one of its tenants or each of them, or for ordering keys with a prefix.
//
// A call counts for the rate of its sink, and for one more at most: for that of its ordering key's
// prefix if there is one, or else for its tenant's, or else for that of each tenant.
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

	// EachTenant limits the calls of each tenant that has no rate of its own, separately, so that
	// no tenant has to be named: a tenant with 100,000 calls has only some under way, and those of
	// others need not wait for them. What is over the rate is copied once. Calls without a tenant
	// are not limited by it. Tenant and OrderingKeyPrefix must be empty then. Defaults to false.
	EachTenant bool

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
			l.Add(field+".OrderingKeyPrefix",
				"%q must end with its first colon or slash, for example %q", p, "account-17:")
		case p != "" && r.Tenant != "", r.EachTenant && (p != "" || r.Tenant != ""):
			l.Add(field, "must have at most one of Tenant, EachTenant and OrderingKeyPrefix")
		case r.Tenant == "*":
			l.Add(field+".Tenant", "%q is no name of a tenant: EachTenant limits each of them", r.Tenant)
		}
		switch {
		case r.PerSecond == 0 && r.InFlight == 0:
			l.Add(field, "must have PerSecond, InFlight, or both")
		case !(r.PerSecond >= 0 && r.PerSecond <= maxRate):
			l.Add(field+".PerSecond", "must be above 0, and at most %d", int(maxRate))
		case r.InFlight < 0 || r.InFlight > maxRate:
			l.Add(field+".InFlight", "must be from 1 to %d", int(maxRate))
		}
		id := Rate{Sink: r.Sink, Tenant: r.Tenant, EachTenant: r.EachTenant, OrderingKeyPrefix: r.OrderingKeyPrefix}
		if seen[id] {
			l.Add(field, "a second rate of sink %q, tenant %q, prefix %q, EachTenant %t",
				r.Sink, r.Tenant, r.OrderingKeyPrefix, r.EachTenant)
		}
		seen[id] = true
	}
}

// maxRate is the largest rate, in calls a second, and the largest number of calls under way.
const maxRate = 1e6

// storedCallsOf is onlyonce.rates.calls_of of a limit.
func storedCallsOf(k gate.Key) string { return codec.CallsOf(k.Prefix, k.Tenant, k.Each) }

// parseCallsOf parses what storedCallsOf returns.
func parseCallsOf(stored string) (k gate.Key) {
	if prefix, is := strings.CutPrefix(stored, "key "); is {
		k.Prefix = prefix
	} else if k.Each = stored == "tenants"; !k.Each {
		k.Tenant = strings.TrimPrefix(stored, "tenant ")
	}
	return k
}

// limitedArgs are the parameters of pickSQL and setAsideSQL that say whose calls need permits. None
// of the arrays is nil, because that would become NULL.
func limitedArgs(l gate.Limited) pgx.NamedArgs {
	prefixes := []int64{}
	callsOf := []string{}
	for _, p := range l.Prefixes {
		prefixes = append(prefixes, p.Stored)
		callsOf = append(callsOf, storedCallsOf(p.Key))
	}
	tenants := append([]string{}, l.Tenants...)
	return pgx.NamedArgs{"tenants": tenants, "each": l.Each, "prefixes": prefixes, "prefixes_calls_of": callsOf}
}
