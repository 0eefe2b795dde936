package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/onlyonce/onlyonce/ops"
)

// rating holds the operator's flags for a rate.
type rating struct {
	consent
	sink, tenant *string
	keyPrefix    *string
	perSecond    *float64
	inFlight     *int64
	unset        bool
}

func outboxRateCommand() command {
	return command{
		name:    "outbox rate",
		args:    "[-postgres URL] -sink S [-tenant T | -key-prefix P] {[-per-second N] [-in-flight N] | -unset} -reason WHY [-yes]",
		summary: "set how many calls go to a sink, a second and at once",
		help: `
Sets how many calls a second relays start (-per-second), and how many they have under way at once (-in-flight), all relays together: to a
sink, with -tenant for one of its tenants, or with -key-prefix for ordering keys with a prefix, of any tenant. It counts instead of what
relays are configured with (RelayConfig.Rates), and outlasts restarts. What is not given stays as it was set before. Relays follow within a
second or two, and so do calls that wait already.

A call counts for the rate of its sink, and for one more at most: for that of its ordering key's prefix if there is one, or else for its
tenant's. A prefix ends with its first colon or slash, because that much of an ordering key is known of a stored call.

-per-second may be a fraction: 0.1 is one call in 10 s. Attempts that are repeated count, too. Relays share -in-flight evenly, and what one
does not need goes to the others; a relay that died keeps its part for 10 s.

Calls of a tenant or a prefix that are over its rate are set aside: they wait in their order, and hold up nobody else's. The calls of a sink that is
over its rate stay in the log. Neither begins the window of a key. "onlyonce outbox status" shows rates, and how many calls wait.

-unset takes back what was set here: what relays are configured with counts again, or no rate. Both also end what a remote has asked
for by Retry-After.

It asks first, unless -yes is given, and writes an audit row. What is set already stays so: status 0, nothing is written.

Example:
  onlyonce outbox rate -sink payments -tenant acme -per-second 10 -reason "their import of 100,000 orders, INC-12"
  onlyonce outbox rate -sink payments -key-prefix account-17: -per-second 1 -reason "one account, 9,000 refunds, INC-14"
  onlyonce outbox rate -sink ledger -in-flight 4 -reason "it fails with more than four connections, INC-13"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			ask := &rating{}
			address := postgresVar(fs)
			textVar(fs, &ask.sink, "sink", "the sink `S`")
			textVar(fs, &ask.tenant, "tenant", "only calls of the tenant `T`")
			textVar(fs, &ask.keyPrefix, "key-prefix", "only calls whose ordering key begins with `P`, for example account-17:")
			fs.Func("per-second", "`N` calls a second", func(s string) error {
				n, err := strconv.ParseFloat(s, 64)
				if err != nil || !(n > 0 && n <= 1e6) {
					return errors.New("must be a number above 0, at most 1000000")
				}
				ask.perSecond = &n
				return nil
			})
			numberVar(fs, &ask.inFlight, "in-flight", "`N` calls under way at once", 1, 1_000_000)
			fs.BoolVar(&ask.unset, "unset", false, "take back what was set")
			ask.consent.flags(fs)
			return func(ctx context.Context, a *app) error { return a.setRate(ctx, *address, ask) }
		},
	}
}

func (a *app) setRate(ctx context.Context, address string, ask *rating) error {
	if err := missing(given{"-sink", ask.sink != nil}, given{"-reason", ask.reason != nil}); err != nil {
		return err
	}
	if (ask.perSecond != nil || ask.inFlight != nil) == ask.unset {
		return usagef("give -per-second, -in-flight or both, or -unset")
	}
	return decide(ctx, a, address, ask.consent, "waiting for another transaction", decision[ops.RateSet]{act: ask.act, write: ask.write, after: func(_ context.Context, _ *database, done *ops.RateSet) error {
		_, _ = fmt.Fprintf(a.out, "Done; audit row %d: relays follow within a second or two.\n", done.AuditID)
		return nil
	}})
}

func (q *rating) act(ctx context.Context, db *database, by ops.By, shown *ops.RateSet) (*ops.RateSet, error) {
	in := ops.SetRateInput{Sink: *q.sink, Tenant: text(q.tenant), OrderingKeyPrefix: text(q.keyPrefix), PerSecond: q.perSecond, Unset: q.unset, Shown: shown}
	if q.inFlight != nil {
		n := int32(*q.inFlight)
		in.InFlight = &n
	}
	return ops.SetRate(ctx, db, by, in)
}

func (q *rating) write(a *app, r *ops.RateSet) {
	var to []string
	if r.PerSecond != nil {
		to = append(to, strconv.FormatFloat(*r.PerSecond, 'f', -1, 64)+" calls a second")
	}
	if r.InFlight != nil {
		to = append(to, fmt.Sprintf("%d under way at once", *r.InFlight))
	}
	set := "to " + strings.Join(to, ", ")
	if len(to) == 0 {
		set = "back to what relays are configured with"
	}
	_, _ = fmt.Fprintf(a.out, "Set the rate of %s %s; until now: %s\n", rateOf(&r.Was), set, oneLine(r.Was.String()))
}

// rateOf names what a rate limits.
func rateOf(r *ops.SinkRate) string {
	switch {
	case r.OrderingKeyPrefix != "":
		return "sink " + cell(r.Sink) + ", ordering keys " + cell(r.OrderingKeyPrefix) + "..."
	case r.Tenant != "":
		return "sink " + cell(r.Sink) + ", tenant " + cell(r.Tenant)
	}
	return "sink " + cell(r.Sink)
}
