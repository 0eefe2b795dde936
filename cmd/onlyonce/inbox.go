package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// keyRingsSQL reads what the rings of keys are set to, and their filters. Out: a row each: horizon in seconds (null: for ever), filters, their bytes.
const keyRingsSQL = `
select r.name as ring, extract(epoch from r.horizon)::float8 as horizon, count(distinct f.use) as filters, coalesce(sum(octet_length(f.filter)), 0)::bigint as filter_bytes
  from onlyonce.rings r left join onlyonce.filters f on f.ring = r.name
 where r.name = any ($1::text[]) group by r.name order by array_position($1::text[], r.name)`

// horizonSQL reads a ring's horizon, and setHorizonSQL sets it. In: ring; seconds, null for ever. By the primary key.
const (
	horizonSQL     = `select name as ring, extract(epoch from horizon)::float8 as was from onlyonce.rings where name = $1`
	lockHorizonSQL = `select name from onlyonce.rings where name = $1 for no key update`
	setHorizonSQL  = `update onlyonce.rings set horizon = make_interval(secs => $2::float8) where name = $1`
)

type keyRing struct {
	Ring        string       `json:"ring"`
	Horizon     *float64     `json:"horizon_seconds"` // null: for ever
	Filters     int64        `json:"filters"`
	FilterBytes int64        `json:"filter_bytes"`
	Segments    []keySegment `json:"segments" db:"-"`
}

type keySegment struct {
	Table  string   `json:"table"`
	State  string   `json:"state"`
	Bytes  int64    `json:"bytes"`
	Keys   int64    `json:"keys"`
	Opened *float64 `json:"opened_seconds"`
	Closed *float64 `json:"closed_seconds"`
}

func inSeconds(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	s := d.Seconds()
	return &s
}

type inboxReport struct {
	Rings     []keyRing     `json:"rings"`
	Frontiers []frontierRow `json:"frontiers"`
}

func inboxStatusCommand() command {
	return command{
		name:    "inbox status",
		args:    "[-postgres URL] [-json]",
		summary: "show the segments that hold claimed keys, and how long they are kept",
		help: `
Shows, from one snapshot of the database, the rings of claimed keys: consumer_keys (of messages that consumers claim, forgotten once every
position has passed them) and standard_keys (all others, forgotten by the database's clock): how long a key is remembered at least, the segments with their sizes, the filters of closed ones, and the
cursors that hold back the retention of consumer_keys most. It changes nothing and works on a standby too.

BEHIND is how old what a cursor has passed for sure is; "unknown" pins retention until its owner has said how far it is: start its consumer, or
take the cursor out of use with "onlyonce cursor retire". "ahead by" says that the database's clock went back: see "onlyonce doctor".

With -json, one object:
  rings      list of {ring, horizon_seconds (null: for ever), filters, filter_bytes, segments (list of {table, state
             (current, draining, closed, retired, free), bytes, keys (estimate), opened_seconds, closed_seconds (ago)})}
  frontiers  list of {scope, topic, partition, behind_seconds (null: unknown; below 0: ahead)}, at most 10`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			return func(ctx context.Context, a *app) error {
				var r inboxReport
				err := a.readSnapshot(ctx, *address, "reading the inbox", func(ctx context.Context, tx pgx.Tx) (err error) {
					if r.Rings, err = readKeyRings(ctx, tx); err != nil {
						return err
					}
					r.Frontiers, err = collect[frontierRow](ctx, tx, frontiersSQL, ahead.Seconds())
					return err
				})
				if err != nil {
					return err
				}
				if *asJSON {
					return writeJSON(a.out, &r)
				}
				a.writeInbox(&r)
				return nil
			}
		},
	}
}

// readKeyRings reads the rings of keys, in the order of [ring.Keys].
func readKeyRings(ctx context.Context, tx pgx.Tx) ([]keyRing, error) {
	var names []string
	for _, which := range ring.Keys() {
		names = append(names, which.Name)
	}
	rings, err := collect[keyRing](ctx, tx, keyRingsSQL, names)
	if err != nil {
		return nil, err
	}
	for i, which := range ring.Keys() {
		st, err := ring.ReadStatus(ctx, tx, which)
		if err != nil {
			return nil, err
		}
		for _, s := range st.Segments {
			rings[i].Segments = append(rings[i].Segments, keySegment{Table: s.Table, State: s.State, Bytes: s.Bytes, Keys: s.Rows, Opened: inSeconds(s.OpenFor), Closed: inSeconds(s.ClosedFor)})
		}
	}
	return rings, nil
}

func (a *app) writeInbox(r *inboxReport) {
	for _, k := range r.Rings {
		_, _ = fmt.Fprintf(a.out, "%s: remembered %s; %d filters, %s\n", k.Ring, remembered(k.Horizon), k.Filters, bytesText(float64(k.FilterBytes)))
		var rows [][]string
		free := 0
		for _, s := range k.Segments {
			if s.State == "free" {
				free++
				continue
			}
			rows = append(rows, []string{s.Table, s.State, bytesText(float64(s.Bytes)), strconv.FormatInt(s.Keys, 10), ageOf(s.Opened), ageOf(s.Closed)})
		}
		writeTable(a.out, []string{"SEGMENT", "STATE", "SIZE", "KEYS, ABOUT", "OPENED AGO", "CLOSED AGO"}, rows)
		_, _ = fmt.Fprintf(a.out, "and %d free\n\n", free)
	}
	if len(r.Frontiers) > 0 {
		var rows [][]string
		for _, f := range r.Frontiers {
			rows = append(rows, []string{f.Scope, f.Topic, strconv.Itoa(int(f.Partition)), f.behind()})
		}
		writeTable(a.out, []string{"SCOPE", "TOPIC", "PARTITION", "BEHIND"}, rows)
	}
}

func remembered(horizon *float64) string {
	if horizon == nil {
		return "for ever"
	}
	return "at least " + days(seconds(*horizon))
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}

// days is a duration for people.
func days(d time.Duration) string {
	if d >= 24*time.Hour && d%(24*time.Hour) == 0 {
		return strconv.FormatInt(int64(d/(24*time.Hour)), 10) + "d"
	}
	return d.Round(time.Second).String()
}

func bytesText(bytes float64) string {
	for _, u := range []struct {
		name string
		of   float64
	}{{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}} {
		if bytes >= u.of {
			return strconv.FormatFloat(bytes/u.of, 'f', 1, 64) + " " + u.name
		}
	}
	return strconv.FormatFloat(bytes, 'f', 0, 64) + " B"
}

// parseDays is a duration that may be in days.
func parseDays(s string) (time.Duration, error) {
	if n, found := strings.CutSuffix(s, "d"); found {
		days, err := strconv.ParseFloat(n, 64)
		if err == nil && days > 0 && days < 36500 {
			return time.Duration(days * float64(24*time.Hour)), nil
		}
	} else if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return d, nil
	}
	return 0, errors.New("must be a duration above 0, such as 7d or 36h")
}

// parseRate is a number of keys in a unit of time, as a number a second.
func parseRate(s string) (float64, error) {
	number, unit, found := strings.Cut(s, "/")
	per := map[string]float64{"s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
	if !found {
		per = 1
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || per == 0 || !(n > 0) || math.IsInf(n, 0) || n > 1e9 {
		return 0, errors.New("must be a number of keys in a second, minute, hour or day, such as 1000/s or 1e7/d")
	}
	return n / per, nil
}

// Measured: a row of 52 bytes and an entry of the index, of 40 when keys are random (make retention); 18 bits a key in a filter, and 42 bytes while it is built.
const (
	bytesPerKey  = 92
	bitsPerKey   = 18
	bytesToBuild = 42
)

// muchMemory is from where on the plan says how to get along with less.
const muchMemory = 1 << 30

// inboxPlan is what a ring would take.
type inboxPlan struct {
	Rate         float64 `json:"keys_per_second"`
	Horizon      float64 `json:"horizon_seconds"`
	Tables       int     `json:"tables"`
	RotateEvery  float64 `json:"rotate_every_seconds"`
	SegmentKeys  float64 `json:"segment_keys"`
	Keys         float64 `json:"keys_at_most"`
	DiskBytes    float64 `json:"disk_bytes"`
	FilterBytes  float64 `json:"filter_bytes_per_consumer"`
	BuildBytes   float64 `json:"build_bytes"`
	MostSegments int     `json:"closed_segments_at_most"`
}

// plan: segments are opened a seventh of the horizon apart. One that was just closed is kept for the horizon, so up to 8 are closed; one is current.
func plan(rate float64, horizon time.Duration) inboxPlan {
	h := horizon.Seconds()
	p := inboxPlan{Rate: rate, Horizon: h, Tables: 10, RotateEvery: h / 7, SegmentKeys: rate * h / 7, MostSegments: 8}
	p.Keys = p.SegmentKeys * 9
	p.DiskBytes = p.Keys * bytesPerKey
	p.FilterBytes = p.SegmentKeys * 8 * bitsPerKey / 8
	p.BuildBytes = min(p.SegmentKeys, inbox.MostKeys) * bytesToBuild
	return p
}

func inboxPlanCommand() command {
	return command{
		name:    "inbox plan",
		args:    "-rate N/s -horizon D [-json]",
		summary: "work out what remembering keys for so long takes",
		help: `
Works out what a ring of keys takes at a rate of new keys and a horizon: tables, disk, memory of each consumer for filters, how often it goes on in
another segment. It asks no database and changes nothing. -rate is in keys a second, minute, hour or day (1000/s, 1e7/d), -horizon is
a duration (7d, 36h).

The horizon has to be longer than any copy of a message may come after the first: the longest time that a producer, a mirror or an outbox
relay goes on trying. See "onlyonce inbox horizon".

Example:
  onlyonce inbox plan -rate 100/s -horizon 7d`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			var rate *float64
			var horizon *time.Duration
			fs.Func("rate", "new keys in a unit of time, `N/s`", func(s string) error {
				n, err := parseRate(s)
				rate = &n
				return err
			})
			fs.Func("horizon", "how long a key is remembered at least, a `duration` (7d)", func(s string) error {
				d, err := parseDays(s)
				horizon = &d
				return err
			})
			asJSON := jsonVar(fs)
			return func(_ context.Context, a *app) error {
				if err := missing(given{"-rate", rate != nil}, given{"-horizon", horizon != nil}); err != nil {
					return err
				}
				p := plan(*rate, *horizon)
				if *asJSON {
					return writeJSON(a.out, &p)
				}
				say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
				say("%.4g keys a second, remembered for at least %s:", p.Rate, days(*horizon))
				say("  tables     %d, of which up to %d are closed, and one is inserted into", p.Tables, p.MostSegments)
				say("  rotation   every %s", days(seconds(p.RotateEvery)))
				say("  keys       %.3g in a segment, %.3g in all at most", p.SegmentKeys, p.Keys)
				say("  disk       %s at most", bytesText(p.DiskBytes))
				say("  memory     %s of filters in each consumer; %s more for a moment in the one that builds them", bytesText(p.FilterBytes), bytesText(p.BuildBytes))
				if p.FilterBytes > muchMemory {
					say("             That is much for a process. A shorter horizon takes less, and so do partitions that are spread over databases.")
				}
				return nil
			}
		},
	}
}

// horizonChange is a new horizon of a ring, as the operator asks for it. What came of it is the ring as it was.
type horizonChange struct {
	consent
	ring    *string
	horizon *time.Duration
	forever bool
}

type horizonRow struct {
	Ring string   `json:"ring"`
	Was  *float64 `json:"was_seconds"`
}

func inboxHorizonCommand() command {
	return command{
		name:    "inbox horizon",
		args:    "[-postgres URL] -ring consumer_keys|standard_keys -horizon D|forever -reason WHY [-yes]",
		summary: "set how long claimed keys are remembered at least",
		help: `
Sets how long a claimed key is remembered at least, behind the closing of its segment: of consumer_keys (Kafka's messages) in the time of the log, so
that nothing is forgotten while a consumer is down or behind; of standard_keys (all other keys: webhooks, dedupe.Claim,
onlyonce.claim, calls that are enqueued outside of a consumer) by the database's clock. Answers to HTTP requests are in neither ring: they live by
Route.TTL. With "forever" nothing is forgotten, and nothing rotated.

A copy that comes later than that is a new message, and is applied again. So the horizon must be longer than the longest time for which a
producer, a mirror or an outbox relay goes on trying, and than what webhook providers do. Shortening it takes effect at the next look of a rotator, and
cannot be taken back for what was forgotten. It asks first, unless -yes is given, and writes an audit row.

Example:
  onlyonce inbox horizon -ring consumer_keys -horizon 7d -reason "producers give up after 2 days, OPS-12"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			var ask horizonChange
			choiceVar(fs, &ask.ring, "ring", "the ring, `consumer_keys` or standard_keys", "consumer_keys", "standard_keys")
			fs.Func("horizon", "a `duration` (7d), or forever", func(s string) error {
				ask.horizon, ask.forever = nil, s == "forever" // of two, the last one counts
				if ask.forever {
					return nil
				}
				d, err := parseDays(s)
				if err == nil && d < time.Minute {
					err = errors.New("must be at least a minute")
				}
				ask.horizon = &d
				return err
			})
			ask.consent.flags(fs)
			return func(ctx context.Context, a *app) error {
				if err := missing(given{"-ring", ask.ring != nil}, given{"-horizon", ask.horizon != nil || ask.forever}, given{"-reason", ask.reason != nil}); err != nil {
					return err
				}
				k := changeKind{action: "inbox horizon", subject: "the ring", waiting: "waiting for a rotator", look: "onlyonce inbox status"}
				return change(ctx, a, *address, k, ask.consent, &ask, func(_ context.Context, _ *database, _ *horizonRow, audit int64) error {
					_, _ = fmt.Fprintf(a.out, "Done; audit row %d.\n", audit)
					return nil
				})
			}
		},
	}
}

func (q *horizonChange) lock(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, lockHorizonSQL, q.ring)
	return err
}

// seconds is what is asked for; nil: for ever.
func (q *horizonChange) seconds() *float64 {
	if q.horizon == nil {
		return nil
	}
	s := q.horizon.Seconds()
	return &s
}

func (q *horizonChange) read(ctx context.Context, tx pgx.Tx) (*horizonRow, error) {
	rows, err := collect[horizonRow](ctx, tx, horizonSQL, q.ring)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("there is no ring %s in this database", *q.ring)
	}
	if was, is := rows[0].Was, q.seconds(); was == nil && is == nil || was != nil && is != nil && *was == *is {
		return nil, &nothing{fmt.Sprintf("Ring %s remembers %s already: nothing was changed.", *q.ring, remembered(is))}
	}
	return &rows[0], nil
}

func (q *horizonChange) differs(shown, now *horizonRow) bool {
	return remembered(shown.Was) != remembered(now.Was)
}

func (q *horizonChange) do(ctx context.Context, tx pgx.Tx, now *horizonRow) (*horizonRow, error) {
	_, err := tx.Exec(ctx, setHorizonSQL, q.ring, q.seconds())
	return now, err
}

func (q *horizonChange) write(a *app, was *horizonRow) {
	_, _ = fmt.Fprintf(a.out, "Keys of ring %s were remembered %s, and are from then on %s.\n", was.Ring, remembered(was.Was), remembered(q.seconds()))
}
