package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/migrations"
)

// Levels of findings, from good to bad. Only the last one makes the status of the command 1.
const (
	levelOK   = "ok"
	levelInfo = "info" // nothing is wrong, and somebody may want to know
	levelWarn = "warn"
	levelFail = "fail"
)

// finding is one line of the report.
type finding struct {
	Check  string `json:"check"`
	Level  string `json:"level"`
	Text   string `json:"text"`
	Change string `json:"change"` // what to do; empty: nothing
}

// doctor collects findings. Rules see only what was read, so that each is a function of a database's state.
type doctor struct {
	ask      *examination
	findings []finding
}

func (d *doctor) add(level, check, change, format string, args ...any) {
	d.findings = append(d.findings, finding{Check: check, Level: level, Text: fmt.Sprintf(format, args...), Change: change})
}

func (d *doctor) ok(check, format string, args ...any) { d.add(levelOK, check, "", format, args...) }

// unless adds that a check is fine if it has found nothing.
func (d *doctor) unless(check, format string, args ...any) {
	if !slices.ContainsFunc(d.findings, func(f finding) bool { return f.Check == check }) {
		d.ok(check, format, args...)
	}
}

// count is how many findings have a level.
func (d *doctor) count(level string) (n int) {
	for _, f := range d.findings {
		if f.Level == level {
			n++
		}
	}
	return n
}

type doctorReport struct {
	SchemaVersion int       `json:"schema_version"`
	Fail          int       `json:"fail"`
	Warn          int       `json:"warn"`
	Findings      []finding `json:"findings"`
}

// examination is what the operator declares, which no database knows.
type examination struct {
	copies, relays, webhooks *time.Duration
	limit                    time.Duration
	clock                    func() time.Time
}

func doctorCommand() command {
	return command{
		name:    "doctor",
		args:    "[-postgres URL] [-copies-within D] [-relay-retries D] [-webhook-retention D] [-all] [-json]",
		summary: "examine a database: what is wrong with it, and what to change",
		help: `
Examines a database, in one snapshot of it, and says of each thing whether it is in order and what to change where it is not. It changes nothing and
works on a standby too, where it sees that server's transactions and not the primary's.

It looks at: the version of the schema; the server's settings; the rights of the roles of docs/roles.sql; the clocks; how long keys are remembered,
against how long copies may come; the rings of keys, whether somebody rotates them, and what holds them up: cursors that are behind, transactions that stay
open, replication slots; lanes of another database cluster; sinks that no relay lists; streams that nobody reads; what waits for an operator.

How long copies may come only you know, so say it: -copies-within is the longest time for which a producer or a mirror goes on trying (also
Config.CopiesWithin), -relay-retries the same of relays that produce to topics which are consumed here (their key_window, or for ever: then the longest time for
which you leave a call pending or parked), -webhook-retention the longest webhook.Config.Retention. Durations such as 7d or 36h. Answers to HTTP requests
do not depend on the rings.

LEVEL is ok, info, warn or fail. Lines that are ok are left out unless -all is given. Status 1 if one is fail.

With -json, one object:
  schema_version, fail, warn   numbers; of findings that are so
  findings                     list of {check, level (ok, info, warn, fail), text, change (what to do; empty: nothing)}, all of them

Example:
  onlyonce doctor -copies-within 2d -relay-retries 24h`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			all := fs.Bool("all", false, "show what is in order too")
			ask := &examination{clock: time.Now}
			for _, v := range []struct {
				name, usage string
				to          **time.Duration
			}{
				{"copies-within", "for how long after the first a copy may be produced, a `duration` (7d)", &ask.copies},
				{"relay-retries", "for how long a relay goes on with a call, a `duration` (24h)", &ask.relays},
				{"webhook-retention", "for how long senders of webhooks deliver again, a `duration` (7d)", &ask.webhooks},
			} {
				fs.Func(v.name, v.usage, func(s string) error {
					d, err := parseDays(s)
					*v.to = &d
					return err
				})
			}
			return func(ctx context.Context, a *app) error {
				ask.limit = a.countLimit
				d := &doctor{ask: ask}
				r := &doctorReport{}
				err := a.readSnapshot(ctx, *address, "examining the database", func(ctx context.Context, tx pgx.Tx) (err error) {
					r.SchemaVersion, err = d.examine(ctx, tx)
					return err
				})
				if err != nil {
					return err
				}
				r.Fail, r.Warn, r.Findings = d.count(levelFail), d.count(levelWarn), d.findings
				if *asJSON {
					err = writeJSON(a.out, r)
				} else {
					a.writeDoctor(r, *all)
				}
				if err == nil && r.Fail > 0 {
					err = &refusal{fmt.Sprintf("%d of %d checks failed", r.Fail, len(r.Findings))}
				}
				return err
			}
		},
	}
}

// examine makes all findings.
func (d *doctor) examine(ctx context.Context, tx pgx.Tx) (version int, err error) {
	if version, err = migrations.Version(ctx, tx); err != nil {
		return 0, err
	}
	if version > migrations.Latest {
		d.add(levelInfo, "schema", "deploy programs of the version that migrated it", "version %d, which is newer than this program's, %d: both work beside each other", version, migrations.Latest)
	} else {
		d.ok("schema", "version %d", version)
	}
	for _, look := range []func(context.Context, pgx.Tx) error{d.server, d.roles, d.clocks, d.memory, d.rings, d.obstacles, d.history, d.outbox, d.events, d.operators} {
		if err := look(ctx, tx); err != nil {
			return 0, err
		}
	}
	return version, nil
}

func (a *app) writeDoctor(r *doctorReport, all bool) {
	rank := []string{levelFail, levelWarn, levelInfo, levelOK}
	sorted := slices.Clone(r.Findings)
	slices.SortStableFunc(sorted, func(x, y finding) int { return slices.Index(rank, x.Level) - slices.Index(rank, y.Level) })
	good := 0
	for _, f := range sorted {
		if f.Level == levelOK {
			good++
			if !all {
				continue
			}
		}
		_, _ = fmt.Fprintf(a.out, "%-4s  %s: %s\n", f.Level, f.Check, cell(f.Text))
		if f.Change != "" {
			_, _ = fmt.Fprintf(a.out, "      change: %s\n", cell(f.Change))
		}
	}
	_, _ = fmt.Fprintf(a.out, "%d fail, %d warn, %d ok\n", r.Fail, r.Warn, good)
}
