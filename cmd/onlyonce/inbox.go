package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

func inboxStatusCommand() command {
	return report(command{
		name:    "inbox status",
		args:    "[-postgres URL] [-json]",
		summary: "show how claimed keys are stored, and for how long",
		help: `
Shows, from one snapshot of the database, the rings of claimed keys: consumer_keys (of messages that
consumers claim, forgotten once every position has passed them), consumer_short_keys and
consumer_long_keys (the same, of scopes whose class of horizon is short or long), and standard_keys,
standard_short_keys and standard_long_keys (all others, forgotten by the database's clock): how long
a key is remembered at least, the segments with their sizes, the filters of closed ones, and the
cursors that hold back the retention of the first three most. It changes nothing and works on a
standby too.

BEHIND is how far in the past a cursor is: all older messages are handled.
"unknown" holds retention back until its owner reports: start its consumer, or
take the cursor out of use with "onlyonce cursor retire". "ahead by" says that
the database's clock went back: see "onlyonce doctor".`,
	}, "reading the inbox", func(*flag.FlagSet) reading[reports.InboxReport] {
		return reading[reports.InboxReport]{
			read: func(ctx context.Context, _ *app, db ops.DB) (*reports.InboxReport, error) {
				return reports.Inbox(ctx, db)
			},
			write: (*app).writeInbox,
		}
	})
}

func (a *app) writeInbox(r *reports.InboxReport) {
	for _, k := range r.Rings {
		_, _ = fmt.Fprintf(a.out, "%s: remembered %s; %d filters, %s\n",
			k.Ring, show.Remembered(k.Horizon), k.Filters, show.Size(float64(k.FilterBytes)))
		var rows [][]string
		free := 0
		for _, s := range k.Segments {
			if s.State == "free" {
				free++
				continue
			}
			rows = append(rows, []string{
				s.Table,
				s.State,
				show.Size(float64(s.Bytes)),
				strconv.FormatInt(s.Keys, 10),
				ageOf(s.Opened),
				ageOf(s.Closed),
			})
		}
		if k.Unused() && k.Ring != ring.ConsumerKeys().Name && k.Ring != ring.StandardKeys().Name {
			_, _ = fmt.Fprint(a.out, "empty\n\n")
			continue
		}
		a.table([]string{"SEGMENT", "STATE", "SIZE", "KEYS, ABOUT", "OPENED AGO", "CLOSED AGO"}, rows)
		_, _ = fmt.Fprintf(a.out, "and %d free\n\n", free)
	}
	writeRows(a, operate.FrontierColumns, r.Frontiers)
	a.writeNextFrontiers(r.Frontiers)
}

// writeNextFrontiers writes what to do about the first frontier that needs an operator.
func (a *app) writeNextFrontiers(frontiers []reports.Frontier) {
	for i := range frontiers {
		if f := &frontiers[i]; len(operate.NextOfFrontier(f)) > 0 {
			a.say("\n%s, partition %d of %s: %s", cell(f.Scope), f.Partition, cell(f.Topic), f.BehindText())
			a.writeSteps(operate.NextOfFrontier(f))
			return
		}
	}
}

// parseRate parses a number of keys per unit of time, and returns it per second.
func parseRate(s string) (float64, error) {
	seconds := map[string]float64{"s": 1, "m": 60, "h": 3600, "d": 86400}
	number, unit, found := strings.Cut(s, "/")
	per := seconds[unit]
	if !found {
		per = 1
	}
	n, err := strconv.ParseFloat(number, 64)
	inRange := n > 0 && n <= 1e9 // not-a-number is not, nor infinity
	if err != nil || per == 0 || !inRange {
		return 0, errors.New("must be a number of keys in a second, minute, hour or day, such as 1000/s or 1e7/d")
	}
	return n / per, nil
}

// muchMemory is the memory above which the plan says how to need less.
const muchMemory = 1 << 30

func inboxPlanCommand() command {
	return command{
		name:    "inbox plan",
		args:    "-rate N/s -horizon D [-rate N/s -horizon D ...] [-json]",
		summary: "work out what space remembering keys takes",
		json:    []reflect.Type{reflect.TypeFor[reports.KeyPlan]()},
		lines:   true,
		help: `
Works out what a ring of keys takes at a rate of new keys and a horizon: tables, disk, memory
of each consumer for filters, how often a new segment begins. It needs no database and
changes nothing. -rate is in keys a second, minute, hour or day (1000/s, 1e7/d), -horizon is
a duration (7d, 36h). Give both for each class of horizon that is used; with several, their
sum is shown too.

The horizon must be longer than the longest time by which a copy may follow the first message: the
time for which a producer, a mirror or an outbox relay retries, or a sender of webhooks, for example
72h for GitHub. See "onlyonce inbox horizon" and "onlyonce inbox class".

Examples:
  onlyonce inbox plan -rate 100/s -horizon 7d
  onlyonce inbox plan -rate 20/s -horizon 72h -rate 1e5/d -horizon 30d`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			var rates []float64
			var horizons []time.Duration
			fs.Func("rate", "new keys in a unit of time, `N/s`", func(s string) error {
				n, err := parseRate(s)
				rates = append(rates, n)
				return err
			})
			fs.Func("horizon", "how long a key is remembered at least, a `duration` (7d)", func(s string) error {
				d, err := operate.ParseDays(s)
				horizons = append(horizons, d)
				return err
			})
			asJSON := jsonVar(fs)
			return func(_ context.Context, a *app) error {
				if err := missing(given{"-rate", rates != nil}, given{"-horizon", horizons != nil}); err != nil {
					return err
				}
				if len(rates) != len(horizons) {
					return usagef("%d of -rate and %d of -horizon: give each rate its horizon",
						len(rates), len(horizons))
				}
				return a.writePlans(rates, horizons, *asJSON)
			}
		},
	}
}

// writePlans writes the plan of each ring, and their sum.
func (a *app) writePlans(rates []float64, horizons []time.Duration, asJSON bool) error {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	var disk, memory float64
	for i := range rates {
		p := reports.PlanKeys(rates[i], horizons[i])
		if asJSON {
			if err := a.writeJSON(&p); err != nil {
				return err
			}
			continue
		}
		disk = disk + p.DiskBytes
		memory = memory + p.FilterBytes
		say("%.4g keys a second, remembered for at least %s:", p.Rate, show.Span(horizons[i]))
		say("  tables     %d, of which up to %d are closed, and one is inserted into", p.Tables, p.MostSegments)
		say("  rotation   every %s", show.Span(show.Seconds(p.RotateEvery)))
		say("  keys       %.3g in a segment, %.3g in all at most", p.SegmentKeys, p.Keys)
		say("  disk       %s at most", show.Size(p.DiskBytes))
		say("  memory     %s of filters in each consumer; %s more for a moment in the one that builds them",
			show.Size(p.FilterBytes), show.Size(p.BuildBytes))
		if p.FilterBytes > muchMemory {
			say("             That is much for a process. A shorter horizon takes less, and so do " +
				"partitions that are spread over databases.")
		}
	}
	if len(rates) > 1 && !asJSON {
		say("together: disk %s at most; memory %s at most, of which a consumer takes the part of its own ring",
			show.Size(disk), show.Size(memory))
	}
	return nil
}
