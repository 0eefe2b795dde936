package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"

	"github.com/onlyonce/onlyonce/ops"
)

// rating holds the operator's flags for a rate.
type rating struct {
	consent
	sink, tenant *string
	perSecond    *float64
	unset        bool
}

func outboxRateCommand() command {
	return command{
		name:    "outbox rate",
		args:    "[-postgres URL] -sink S [-tenant T] -per-second N | -unset -reason WHY [-yes]",
		summary: "set how many calls a second go to a sink",
		help: `
Sets how many calls a second relays start, all relays together: to a sink, or with -tenant for one of its tenants. It counts instead of what
relays are configured with (RelayConfig.Rates), and outlasts restarts. Relays follow within a second or two, and so do calls that wait already.
N may be a fraction: 0.1 is one call in 10 s. Attempts that are repeated count, too.

A tenant's calls that are over its rate are set aside: they wait in their order, and hold up nobody else's. The calls of a sink that is
over its rate stay in the log. Neither begins the window of a key. "onlyonce outbox status" shows rates, and how many calls wait.

-unset takes back what was set here: what relays are configured with counts again, or no rate. Both also end what a remote has asked
for by Retry-After.

It asks first, unless -yes is given, and writes an audit row. What is set already stays so: status 0, nothing is written.

Example:
  onlyonce outbox rate -sink payments -tenant acme -per-second 10 -reason "their import of 100,000 orders, INC-12"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			ask := &rating{}
			address := postgresVar(fs)
			textVar(fs, &ask.sink, "sink", "the sink `S`")
			textVar(fs, &ask.tenant, "tenant", "only calls of the tenant `T`")
			fs.Func("per-second", "`N` calls a second", func(s string) error {
				n, err := strconv.ParseFloat(s, 64)
				if err != nil || !(n > 0 && n <= 1e6) {
					return errors.New("must be a number above 0, at most 1000000")
				}
				ask.perSecond = &n
				return nil
			})
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
	if (ask.perSecond != nil) == ask.unset {
		return usagef("give either -per-second or -unset")
	}
	return decide(ctx, a, address, ask.consent, "waiting for another transaction", decision[ops.RateSet]{act: ask.act, write: ask.write, after: func(_ context.Context, _ *database, done *ops.RateSet) error {
		_, _ = fmt.Fprintf(a.out, "Done; audit row %d: relays follow within a second or two.\n", done.AuditID)
		return nil
	}})
}

func (q *rating) act(ctx context.Context, db *database, by ops.By, _ *ops.RateSet) (*ops.RateSet, error) {
	return ops.SetRate(ctx, db, by, ops.SetRateInput{Sink: *q.sink, Tenant: text(q.tenant), PerSecond: q.perSecond})
}

func (q *rating) write(a *app, r *ops.RateSet) {
	to := "back to what relays are configured with"
	if r.PerSecond != nil {
		to = "to " + strconv.FormatFloat(*r.PerSecond, 'f', -1, 64) + " calls a second"
	}
	_, _ = fmt.Fprintf(a.out, "Set the rate of %s %s; until now: %s\n", rateOf(&r.Was), to, oneLine(r.Was.String()))
}

// rateOf names what a rate limits.
func rateOf(r *ops.SinkRate) string {
	if r.Tenant == "" {
		return "sink " + cell(r.Sink)
	}
	return "sink " + cell(r.Sink) + ", tenant " + cell(r.Tenant)
}
