package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/ops"
)

func doctorCommand() command {
	return command{
		name: "doctor",
		args: "[-postgres URL] [-copies-within D] [-relay-retries D] [-webhook-retention D] " +
			"[-restore-within D -brokers LIST [-broker-login FILE]] [-all] [-json]",
		summary: "examine a database: what is wrong, and what to change",
		json:    []reflect.Type{reflect.TypeFor[ops.Examination]()},
		help: `
Examines a database in one snapshot. For each check it reports whether all is in order and, if not,
what to change. It changes nothing and works on a standby too, where it sees that server's
transactions and not the primary's.

Run it before each deployment. These are the checks, by the name in their findings:

` + checkList() + ` Only you know how late copies may come, so state it: -copies-within is the longest time for which
a producer or a mirror retries (also Config.CopiesWithin), -relay-retries the same for relays that
produce to topics consumed here (their key_window; if that is forever, the longest time for which
you leave a call pending or parked), -webhook-retention the longest webhook.Config.Retention.
Durations such as 7d or 36h. Answers to HTTP requests do not depend on the rings.

-restore-within is how far back a restore of the database may go: the age of the oldest backup that
you would restore, and how long it takes you to notice and to restore. With it, doctor reads the
retention of each consumed topic from -brokers: messages whose effects a restore undoes are handled
again only if Kafka still has them. If they need TLS or a login, -broker-login names a file in JSON
with the fields tls, tls_ca, tls_cert, tls_key, sasl, user, password, token and token_extensions,
as a sink of type kafka has them (onlyonce-relay -help).

LEVEL is ok, info, warn or fail. Lines that are ok are left out unless -all is given. The exit
status is 1 if a check fails.

Example:
  onlyonce doctor -copies-within 2d -relay-retries 24h`,
		setup: setUpDoctor,
	}
}

func setUpDoctor(fs *flag.FlagSet) func(context.Context, *app) error {
	address := postgresVar(fs)
	asJSON := jsonVar(fs)
	all := fs.Bool("all", false, "show what is in order too")
	brokers := fs.String("brokers",
		"", "with -restore-within: Kafka's brokers, `host:port,...` (default: $"+envBrokers+")")
	var login *string
	textVar(fs, &login, "broker-login", "with -brokers: TLS and login, a `FILE` in JSON")
	var ask ops.ExamineQuestion
	var within *time.Duration
	fieldsVar(fs, append(operate.ExamineFields(&ask),
		operate.At(&within, "restore-within", "duration", "how far back a restore may go, a duration (72h)")))
	return func(ctx context.Context, a *app) error {
		ask.CountLimit = a.countLimit
		*brokers = cmp.Or(*brokers, a.env(envBrokers))
		if within != nil && *brokers == "" {
			return usagef("-restore-within: no brokers given: add -brokers host:9092, or set %s", envBrokers)
		}
		kafka, err := a.brokers(strings.Split(*brokers, ","), login)
		if err != nil {
			return err
		}
		var r *ops.Examination
		err = a.ask(ctx, *address, "examining the database", func(ctx context.Context, db ops.DB) (err error) {
			if r, err = ops.Examine(ctx, db, ask); err == nil && within != nil {
				err = examineRetention(ctx, db, kafka, *within, r)
			}
			return err
		})
		if err != nil {
			return err
		}
		if *asJSON {
			err = a.writeJSON(r)
		} else {
			a.writeDoctor(r, *all)
		}
		if err == nil && r.Fail > 0 {
			err = &refusal{fmt.Sprintf("%d of %d checks failed", r.Fail, len(r.Findings))}
		}
		return err
	}
}

func (a *app) writeDoctor(r *ops.Examination, all bool) {
	rank := []string{"fail", "warn", "info", "ok"}
	sorted := slices.Clone(r.Findings)
	slices.SortStableFunc(sorted, func(x, y ops.Finding) int {
		return slices.Index(rank, x.Level) - slices.Index(rank, y.Level)
	})
	good := 0
	for _, f := range sorted {
		if f.Level == "ok" {
			good++
			if !all {
				continue
			}
		}
		_, _ = fmt.Fprintf(a.out, "%-4s  %s: %s\n", f.Level, f.Check, cell(f.Text))
		if f.Remedy != "" {
			_, _ = fmt.Fprintf(a.out, "      change: %s\n", cell(f.Remedy))
		}
	}
	_, _ = fmt.Fprintf(a.out, "%d fail, %d warn, %d ok\n", r.Fail, r.Warn, good)
}
