package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/ops"
)

// logSinksSQL lists every sink that somebody knows: listed by a relay, with calls in the log, in onlyonce.outbox, or parked. In: sink
// (null: any). The log's are found by the index outbox_log_new, one look for each sink.
const logSinksSQL = sinksOfLog + `
select n.sink, exists (select 1 from onlyonce.lanes l where l.sink = n.sink) as listed, k.paused_at, k.paused_by, k.pause_reason
  from (select sink from of_log where sink is not null
        union select name from onlyonce.sinks
        union select sink from onlyonce.outbox where state = 'pending'
        union select sink from onlyonce.parked where kind = 'call' and settled_at is null and sink is not null) n
  left join onlyonce.sinks k on k.name = n.sink
 where $1::text is null or n.sink = $1
 order by 1`

// sinksOfLog finds each sink that has calls in the log; its last row is null. By the index outbox_log_new, one look for each.
const sinksOfLog = `
with recursive of_log as (
  (select r.sink from onlyonce.outbox_log r order by r.sink limit 1)
  union all
  select (select r.sink from onlyonce.outbox_log r where r.sink > s.sink order by r.sink limit 1) from of_log s where s.sink is not null)`

// lanesSQL reads the lanes and who owns them, by the database's clock. In: sink (null: any). By the index on (sink, lane).
const lanesSQL = `
select l.sink, l.lane, e.epoch, e.until, (e.nonce is not null and e.until > clock_timestamp() and e.until <= clock_timestamp() + interval '1 hour') is true as held
  from onlyonce.lanes l join onlyonce.leases e on e.id = l.id
 where $1::text is null or l.sink = $1 order by 1, 2`

// waitingCallsSQL counts the calls of the log that no cursor has passed. In: sink (null: any). One row for each lane (null: no relay lists the sink) and
// slot. By outbox_log_new, from the oldest transaction on that the lane's cursor has not seen. in_pass: of those, how many the
// pass holds that is under way. A row is never behind a cursor because it is parked: what parks it moves the cursor.
const waitingCallsSQL = `
select l.sink, l.lane, p.slot, p.calls, p.in_pass, extract(epoch from clock_timestamp() - p.oldest)::float8 as age
  from onlyonce.lanes l,
       lateral (select r.slot, count(*) as calls, count(*) filter (where pg_visible_in_snapshot(r.xid, l.target)) as in_pass, min(r.created_at) as oldest
                  from onlyonce.outbox_log r
                 where r.sink = l.sink and r.lane = l.lane and r.xid >= pg_snapshot_xmin(l.prev) and not pg_visible_in_snapshot(r.xid, l.prev)
                   and not (l.target is not null and pg_visible_in_snapshot(r.xid, l.target) and r.id <= l.last_id)
                 group by r.slot) p
 where $1::text is null or l.sink = $1
union all
select r.sink, null, r.slot, count(*), 0, extract(epoch from clock_timestamp() - min(r.created_at))::float8
  from onlyonce.outbox_log r
 where ($1::text is null or r.sink = $1) and not exists (select 1 from onlyonce.lanes l where l.sink = r.sink and l.lane = r.lane)
 group by r.sink, r.slot
 order by 1, 2, 3`

// parkedCallsSQL counts the parked calls of each sink. In: sink (null: any). Reads the whole table, which holds failures, without its bodies.
const parkedCallsSQL = `
select sink, state, count(*) as count, min(parked_at) as oldest
  from onlyonce.parked where kind = 'call' and sink is not null and ($1::text is null or sink = $1)
 group by 1, 2 order by 1, 2`

// oldCallsSQL counts what is to be sent of the table that code before schema version 3 enqueued to. In: sink (null: any). By outbox_pending.
const oldCallsSQL = `select sink, count(*) as count from onlyonce.outbox where state = 'pending' and ($1::text is null or sink = $1) group by sink`

// ringSQL reads the log's segments. The sizes hold indexes and bodies. behind: sinks, of any name, with a lane whose
// cursor is older than the last transaction that may have written into a closed segment. Whether it has seen all of those, the calls tell.
const ringSQL = `
select s.slot, case when s.slot = r.cur then 'current' when s.slot = r.draining then 'draining' when s.slot = r.retired then 'retired'
                    when s.slot = any (r.closed) then 'closed' else 'free' end as state,
       s.use_no, s.opened_at, s.closed_at, extract(epoch from clock_timestamp() - s.opened_at)::float8 as age,
       pg_total_relation_size(format('onlyonce.outbox_log_%s', s.slot)::regclass) as bytes,
       array(select distinct l.sink from onlyonce.lanes l where (s.slot = any (r.closed) or s.slot = r.retired) and pg_snapshot_xmax(l.prev) < s.bound order by 1)::text[] as behind
  from onlyonce.rings r join onlyonce.segments s on s.ring = r.name
 where r.name = 'outbox' order by s.slot`

type outboxSink struct {
	Sink        string        `json:"sink"`
	Listed      bool          `json:"listed"`
	PausedAt    *time.Time    `json:"paused_at"`
	PausedBy    *string       `json:"paused_by"`
	PauseReason *string       `json:"pause_reason"`
	Pending     *int64        `json:"pending" db:"-"`            // null: not counted
	Age         *float64      `json:"oldest_age_seconds" db:"-"` // of what is pending
	Old         int64         `json:"pending_before_version_3" db:"-"`
	Parked      []callCount   `json:"parked" db:"-"`
	Lanes       []*outboxLane `json:"lanes" db:"-"`
}

type outboxLane struct {
	Sink    string     `json:"-"`
	Lane    int16      `json:"lane"`
	Epoch   int64      `json:"epoch"`
	Until   *time.Time `json:"until"`
	Held    bool       `json:"held"`
	Pending *int64     `json:"pending" db:"-"` // null: not counted
	InPass  *int64     `json:"in_pass" db:"-"`
	Age     *float64   `json:"oldest_age_seconds" db:"-"`
}

type callCount struct {
	Sink   string    `json:"-"`
	State  string    `json:"state"`
	Count  int64     `json:"count"`
	Oldest time.Time `json:"oldest"`
}

// waitingCalls are calls of one lane in one segment that no cursor has passed.
type waitingCalls struct {
	Sink   string
	Lane   *int16 // nil: no relay lists the sink
	Slot   int16
	Calls  int64
	InPass int64
	Age    *float64
}

type segment struct {
	Slot     int16      `json:"slot"`
	State    string     `json:"state"`
	UseNo    int64      `json:"use_no"`
	OpenedAt *time.Time `json:"opened_at"`
	ClosedAt *time.Time `json:"closed_at"`
	Age      *float64   `json:"age_seconds"`
	Bytes    int64      `json:"bytes"`
	HeldBy   []heldBy   `json:"held_by" db:"-"`
	Behind   []string   `json:"-"`
}

// heldBy says why a segment cannot be emptied.
type heldBy struct {
	Sink  string `json:"sink"`
	Lanes []int  `json:"lanes"` // whose calls are not sent; none where the sink is not listed
	Calls int64  `json:"calls"`
	Why   string `json:"why"`
}

const (
	heldBehind   = "behind"   // calls of listed sinks are to be sent
	heldUnlisted = "unlisted" // no relay lists the sink
	heldCursor   = "cursor"   // nothing is to be sent, but the next pass is to be begun
)

func (h *heldBy) String() string {
	switch h.Why {
	case heldUnlisted:
		return fmt.Sprintf("no relay lists sink %s (%d calls)", h.Sink, h.Calls)
	case heldCursor:
		return fmt.Sprintf("cursors of sink %s are before it, with nothing to send: a relay moves them", h.Sink)
	}
	return fmt.Sprintf("sink %s is behind (%d calls in %d lanes)", h.Sink, h.Calls, len(h.Lanes))
}

type outboxReport struct {
	Counted bool         `json:"counted"` // pending calls were
	Sinks   []outboxSink `json:"sinks"`
	Ring    []segment    `json:"ring"`
}

func outboxStatusCommand() command {
	return command{
		name:    "outbox status",
		args:    "[-postgres URL] [-sink S] [-json]",
		summary: "show what is to be sent, who sends it, and the segments of the log",
		help: `
Shows, from one snapshot of the database: for each sink how many calls of the log are to be sent, the age of the oldest, what is parked by
state, and whether the sink is paused; its lanes, with who holds them; and the segments that the log is made of, with why one cannot
be emptied. It changes nothing and works on a standby too.

LANES is how many lanes relays hold, of how many; "not listed" means that no relay has this sink, and its calls wait. IN PASS counts those
of PENDING that a relay is at. Lanes are listed if there is something to say: with -sink all of them. Segments: new calls go
to the current one; one is draining until transactions that may still write into it have ended; closed ones are emptied once all in
them is sent and retention has passed. HELD BY says what a segment waits for, retention apart: lanes that are behind, a sink that no relay
lists (list it, or discard its calls), cursors that only a relay moves.

With -json, one object:
  counted  false: counting pending calls took over 5 s, and pending, in_pass and ages are null
  sinks    list of {sink, listed, paused_at, paused_by, pause_reason, pending, oldest_age_seconds, pending_before_version_3 (in
           onlyonce.outbox), parked (list of {state, count, oldest}), lanes (list of {lane, epoch, until, held, pending, in_pass,
           oldest_age_seconds})}
  ring     list of {slot, state (current, draining, closed, retired, free), use_no, opened_at, closed_at, age_seconds, bytes,
           held_by (list of {sink, lanes, calls, why (behind, unlisted, cursor)})}; of one sink with -sink`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			var sink *string
			textVar(fs, &sink, "sink", "only the sink `S`")
			return func(ctx context.Context, a *app) error {
				var report *outboxReport
				err := a.readSnapshot(ctx, *address, "reading the outbox", func(ctx context.Context, tx pgx.Tx) (err error) {
					report, err = readOutbox(ctx, tx, sink, a.countLimit)
					return err
				})
				if err != nil {
					return err
				}
				if *asJSON {
					return writeJSON(a.out, report)
				}
				a.writeOutbox(report, sink != nil)
				return nil
			}
		},
	}
}

func readOutbox(ctx context.Context, tx pgx.Tx, sink *string, limit time.Duration) (*outboxReport, error) {
	r := &outboxReport{}
	var err error
	if r.Sinks, err = collect[outboxSink](ctx, tx, logSinksSQL, sink); err != nil {
		return nil, err
	}
	if len(r.Sinks) == 0 && sink != nil {
		return nil, unknownSink(ctx, tx, *sink)
	}
	lanes, err := collect[outboxLane](ctx, tx, lanesSQL, sink)
	if err != nil {
		return nil, err
	}
	parked, err := collect[callCount](ctx, tx, parkedCallsSQL, sink)
	if err != nil {
		return nil, err
	}
	type oldCount struct {
		Sink  string
		Count int64
	}
	old, err := collect[oldCount](ctx, tx, oldCallsSQL, sink)
	if err != nil {
		return nil, err
	}
	if r.Ring, err = collect[segment](ctx, tx, ringSQL); err != nil {
		return nil, err
	}
	waiting, err := collectWithin[waitingCalls](ctx, tx, limit, waitingCallsSQL, sink)
	if err != nil {
		return nil, err
	}
	r.Counted = waiting != nil

	for i := range r.Sinks {
		s := &r.Sinks[i]
		utc(s.PausedAt)
		s.Parked, s.Lanes = []callCount{}, []*outboxLane{}
		for j := range lanes {
			if l := &lanes[j]; l.Sink == s.Sink {
				utc(l.Until)
				s.Lanes = append(s.Lanes, l)
			}
		}
		for _, p := range parked {
			if p.Sink == s.Sink {
				utc(&p.Oldest)
				s.Parked = append(s.Parked, p)
			}
		}
		for _, o := range old {
			if o.Sink == s.Sink {
				s.Old = o.Count
			}
		}
		if r.Counted {
			s.count(waiting)
		}
	}
	for i := range r.Ring {
		g := &r.Ring[i]
		utc(g.OpenedAt)
		utc(g.ClosedAt)
		g.judge(waiting, sink)
	}
	return r, nil
}

// count adds up what waits of the sink.
func (s *outboxSink) count(waiting []waitingCalls) {
	older := func(age **float64, than *float64) {
		if than != nil && (*age == nil || **age < *than) {
			*age = than
		}
	}
	s.Pending = new(int64)
	for _, l := range s.Lanes {
		l.Pending, l.InPass = new(int64), new(int64)
	}
	for i := range waiting {
		w := &waiting[i]
		if w.Sink != s.Sink {
			continue
		}
		*s.Pending += w.Calls
		older(&s.Age, w.Age)
		for _, l := range s.Lanes {
			if w.Lane != nil && *w.Lane == l.Lane {
				*l.Pending += w.Calls
				*l.InPass += w.InPass
				older(&l.Age, w.Age)
			}
		}
	}
}

// judge finds what keeps the segment from being emptied. The current one and those that are free wait for nothing.
func (g *segment) judge(waiting []waitingCalls, sink *string) {
	g.HeldBy = []heldBy{}
	if g.State == "current" || g.State == "free" {
		return
	}
	find := func(sink string) *heldBy {
		for i := range g.HeldBy {
			if g.HeldBy[i].Sink == sink {
				return &g.HeldBy[i]
			}
		}
		return nil
	}
	for _, w := range waiting {
		if w.Slot != g.Slot {
			continue
		}
		h := find(w.Sink)
		if h == nil {
			g.HeldBy = append(g.HeldBy, heldBy{Sink: w.Sink, Lanes: []int{}, Why: heldUnlisted})
			h = &g.HeldBy[len(g.HeldBy)-1]
		}
		h.Calls += w.Calls
		if w.Lane != nil {
			h.Why, h.Lanes = heldBehind, append(h.Lanes, int(*w.Lane))
		}
	}
	for _, behind := range g.Behind {
		if find(behind) == nil && (sink == nil || *sink == behind) {
			g.HeldBy = append(g.HeldBy, heldBy{Sink: behind, Lanes: []int{}, Why: heldCursor})
		}
	}
}

func (a *app) writeOutbox(r *outboxReport, all bool) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format, args...) }
	var rows, lanes [][]string
	for i := range r.Sinks {
		s := &r.Sinks[i]
		held, inPass := 0, int64(0)
		for _, l := range s.Lanes {
			if l.Held {
				held++
			}
			if l.InPass != nil {
				inPass += *l.InPass
			}
			if all || l.Pending != nil && *l.Pending > 0 {
				until := ""
				if l.Until != nil {
					until = instant(*l.Until)
				}
				lanes = append(lanes, []string{s.Sink, strconv.Itoa(int(l.Lane)), yesNo(l.Held), number(l.Epoch), until,
					numberOrDash(l.Pending), numberOrDash(l.InPass), ageOf(l.Age)})
			}
		}
		relays := fmt.Sprintf("%d of %d held", held, len(s.Lanes))
		if !s.Listed {
			relays = "not listed"
		}
		var parked []string
		for _, p := range s.Parked {
			parked = append(parked, fmt.Sprintf("%d %s since %s", p.Count, p.State, instant(p.Oldest)))
		}
		passing := number(inPass)
		if !r.Counted {
			passing = "-"
		}
		rows = append(rows, []string{s.Sink, relays, numberOrDash(s.Pending), passing, ageOf(s.Age), strings.Join(parked, ", ")})
	}
	say("Sinks: %d\n", len(r.Sinks))
	a.section([]string{"SINK", "LANES", "PENDING", "IN PASS", "OLDEST", "PARKED"}, rows)
	for i := range r.Sinks {
		s := &r.Sinks[i]
		if s.PausedAt != nil {
			p := ops.Sink{Name: s.Sink, PausedAt: s.PausedAt, PausedBy: s.PausedBy, PauseReason: s.PauseReason}
			say("Sink %s is paused %s\n", cell(s.Sink), oneLine(p.Paused()))
		}
		if s.Old > 0 {
			say("Sink %s has %d calls in onlyonce.outbox, which were enqueued before schema version 3\n", cell(s.Sink), s.Old)
		}
	}
	if !r.Counted {
		say("pending calls are not counted: that took over %v\n", a.countLimit)
	}
	say("\nLanes%s: %d\n", map[bool]string{false: " with calls to send"}[all], len(lanes))
	a.section([]string{"SINK", "LANE", "HELD", "EPOCH", "UNTIL", "PENDING", "IN PASS", "OLDEST"}, lanes)

	rows = nil
	for i := range r.Ring {
		g := &r.Ring[i]
		if g.State == "free" {
			continue
		}
		var held []string
		for j := range g.HeldBy {
			held = append(held, g.HeldBy[j].String())
		}
		rows = append(rows, []string{strconv.Itoa(int(g.Slot)), g.State, size(g.Bytes), ageOf(g.Age), strings.Join(held, "; ")})
	}
	free := slices.DeleteFunc(slices.Clone(r.Ring), func(g segment) bool { return g.State != "free" })
	say("\nSegments: %d, and %d free\n", len(rows), len(free))
	a.section([]string{"SLOT", "STATE", "SIZE", "AGE", "HELD BY"}, rows)
}

// ageOf shows seconds.
func ageOf(seconds *float64) string {
	if seconds == nil {
		return ""
	}
	return time.Duration(*seconds * float64(time.Second)).Round(time.Second).String()
}

// size shows bytes.
func size(n int64) string {
	switch {
	case n < 10<<10:
		return fmt.Sprintf("%d B", n)
	case n < 10<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// sinkNamesSQL lists the sinks that a relay has listed. No more than a person reads.
const sinkNamesSQL = `select name from onlyonce.sinks order by name limit 20`

// unknownSink names the sinks there are.
func unknownSink(ctx context.Context, tx pgx.Tx, name string) error {
	type one struct{ Name string }
	known, err := collect[one](ctx, tx, sinkNamesSQL)
	if err != nil {
		return err
	}
	if len(known) == 0 {
		return usagef("-sink: there is no sink %q: no relay of this schema version has listed one yet", name)
	}
	text := ""
	for i, k := range known {
		if i > 0 {
			text += ", "
		}
		text += k.Name
	}
	return usagef("-sink: there is no sink %q: relays have listed %s", name, text)
}
