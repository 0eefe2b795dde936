package reports

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// logSinksSQL lists the sinks that a relay has listed, or that have calls in the log. In: sink
// (null: any). The log's are found by the index batches_new, one look for each sink.
const logSinksSQL = SinksOfLog + `
select n.sink,
       exists (select 1 from onlyonce.sink_lanes l where l.sink = n.sink) as listed,
       k.paused_at,
       k.paused_by,
       k.pause_reason
  from (select sink from of_log where sink is not null
        union select name from onlyonce.sinks) n
  left join onlyonce.sinks k on k.name = n.sink
 where $1::text is null or n.sink = $1
 order by 1`

// LanesSQL reads the lanes and the relays that own them, by the database's clock. In: sink (null:
// any). By the index on (sink, lane).
const LanesSQL = `
select sink,
       lane,
       epoch,
       until,
       held,
       case when not held then extract(epoch from clock_timestamp() - freed)::float8 end as unheld
  from (select l.sink,
               l.lane,
               e.epoch,
               e.until,
               (e.nonce is not null
                and e.until > clock_timestamp()
                and e.until <= clock_timestamp() + interval '1 hour') is true as held,
               coalesce(e.until, e.freed_at) as freed
          from onlyonce.sink_lanes l join onlyonce.leases e on e.id = l.id
         where $1::text is null or l.sink = $1) x
 order by 1, 2`

// WaitingCallsSQL counts the calls of the log that no cursor has passed. In: sink (null: any). One
// row for each lane (null: no relay lists the sink) and slot. By batches_new, from the oldest
// transaction that the lane's cursor has not seen; without a lane, all of a sink. in_pass: how many
// of those are in the running pass. Of a batch that the cursor is in, the calls up to last_id are
// done. A parked call needs no exception: parking it moves the cursor past it.
const WaitingCallsSQL = SinksOfLog + `
select l.sink,
       l.lane,
       p.slot,
       p.calls,
       p.in_pass,
       extract(epoch from clock_timestamp() - p.oldest)::float8 as age
  from onlyonce.lanes l,
       lateral (
         select r.slot,
                sum(r.n - r.done) as calls,
                coalesce(sum(r.n - r.done) filter (where r.pass), 0) as in_pass,
                min(r.created_at) as oldest
                  from (select b.slot,
                               b.n,
                               b.created_at,
                               b.pass,
                               case when b.pass then greatest(least(l.last_id - b.id + 1, b.n), 0) else 0 end as done
                          from (select r.slot,
                                       r.id,
                                       r.n,
                                       r.created_at,
                                       coalesce(pg_visible_in_snapshot(r.xid, l.target), false) as pass
                                  from onlyonce.batches r
                                 where r.sink = l.sink
                                   and r.lane = l.lane
                                   and r.xid >= pg_snapshot_xmin(l.prev)
                                   and not pg_visible_in_snapshot(r.xid, l.prev)) b) r
                 where r.done < r.n
                 group by r.slot) p
 where $1::text is null or l.sink = $1
union all
select r.sink,
       null,
       r.slot,
       sum(r.n),
       0,
       extract(epoch from clock_timestamp() - min(r.created_at))::float8
  from of_log s cross join generate_series(0, 15) n(lane)
 cross join lateral (select b.* from onlyonce.batches b where b.sink = s.sink and b.lane = n.lane offset 0) r
 where s.sink is not null and ($1::text is null or s.sink = $1)
   and not exists (select 1 from onlyonce.sink_lanes l where l.sink = s.sink and l.lane = n.lane)
 group by r.sink, r.slot
 order by 1, 2, 3`

// RingSQL reads the log's segments. The sizes include indexes and bodies. behind: sinks, of any
// name, with a lane whose cursor is older than the last transaction that may have written into a
// closed segment. The counts of calls show whether the cursor has seen all of that segment.
const RingSQL = `
select s.slot,
       case when s.slot = r.cur then 'current'
            when s.slot = r.draining then 'draining'
            when s.slot = r.retired then 'retired'
            when s.slot = any (r.closed) then 'closed'
            else 'free' end as state,
       s.use_no,
       s.opened_at,
       s.closed_at,
       extract(epoch from clock_timestamp() - s.opened_at)::float8 as age,
       pg_total_relation_size(format('onlyonce_segments.batches_%s', s.slot)::regclass) as bytes,
       array(select distinct l.sink
               from onlyonce.lanes l
              where (s.slot = any (r.closed) or s.slot = r.retired) and pg_snapshot_xmax(l.prev) < s.bound
              order by 1)::text[] as behind
  from onlyonce.rings r join onlyonce.segments s on s.ring = r.name
 where r.name = 'outbox' order by s.slot`

// sinkNamesSQL lists the sinks that a relay has listed. No more than a person reads.
const sinkNamesSQL = `select name from onlyonce.sinks order by name limit 20`

// OutboxSink is a sink: the calls to be sent to it, and the relays that send them.
type OutboxSink struct {
	Sink        string     `json:"sink"`
	Listed      bool       `json:"listed" doc:"a relay has listed it; if none has, its calls wait"`
	PausedAt    *time.Time `json:"paused_at"`
	PausedBy    *string    `json:"paused_by"`
	PauseReason *string    `json:"pause_reason"`
	Pending     *int64     `json:"pending" db:"-" doc:"how many calls of the log are to be sent. Nil: not counted"`
	Age         *float64   `json:"oldest_age_seconds" db:"-" doc:"of the oldest of those; nil: none, or not counted"`
	// the calls that are not delivered, wherever they wait; nil: not counted
	Undelivered *PendingCalls `json:"undelivered" db:"-" doc:"above"`
	Parked      []ParkedCalls `json:"parked" db:"-"`
	Lanes       []*OutboxLane `json:"lanes" db:"-" doc:"none if the sink is not listed"`
	// calls in lanes that no relay has held for longer than a lease; nil: none, or not counted
	Unheld *UnheldCalls `json:"unheld" db:"-" doc:"above"`
	Rates  []SinkRate   `json:"rates" db:"-" doc:"of the sink, its tenants and prefixes, and what waits for them"`
}

// OutboxLane is a sixteenth of a sink's calls.
type OutboxLane struct {
	Sink    string     `json:"-"`
	Lane    int16      `json:"lane"`
	Held    bool       `json:"held" doc:"a relay holds the lease"`
	Epoch   int64      `json:"epoch" doc:"rises with each owner"`
	Until   *time.Time `json:"until" doc:"when the lease ends; nil: it was given back"`
	Unheld  *float64   `json:"unheld_seconds" doc:"for how long no relay has held it; nil: one holds it"`
	Pending *int64     `json:"pending" db:"-" doc:"nil: not counted"`
	InPass  *int64     `json:"in_pass" db:"-" doc:"of those, how many its relay is sending"`
	Age     *float64   `json:"oldest_age_seconds" db:"-"`
}

// ParkedCalls counts the parked calls of a sink in one state that are not settled.
type ParkedCalls struct {
	Sink   string    `json:"-"`
	State  string    `json:"state"`
	Count  int64     `json:"count"`
	Open   int64     `json:"open" doc:"of those, how many the remote may have applied: an attempt had no final answer"`
	Oldest time.Time `json:"oldest"`
}

// Text is for example "3 waiting (2 open)".
func (p *ParkedCalls) Text() string {
	open := ""
	if p.Open > 0 && p.State != "reconcile" { // which all are
		open = fmt.Sprintf(" (%d open)", p.Open)
	}
	return fmt.Sprintf("%d %s%s", p.Count, p.State, open)
}

// WaitingCalls are calls of one lane in one segment that no cursor has passed.
type WaitingCalls struct {
	Sink   string
	Lane   *int16 // nil: no relay lists the sink
	Slot   int16
	Calls  int64
	InPass int64
	Age    *float64
}

// OutboxSegment is a table of the outbox's log.
type OutboxSegment struct {
	Slot     int16      `json:"slot"`
	State    string     `json:"state" doc:"current, draining, closed, retired or free"`
	UseNo    int64      `json:"use_no"`
	OpenedAt *time.Time `json:"opened_at"`
	ClosedAt *time.Time `json:"closed_at"`
	Age      *float64   `json:"age_seconds" doc:"since it was opened"`
	Bytes    int64      `json:"bytes" doc:"with indexes"`
	// HeldBy lists what keeps the segment from being emptied, besides retention.
	HeldBy []HeldBy `json:"held_by" db:"-"`
	Behind []string `json:"-"`
}

// HeldBy is a sink that keeps a segment from being emptied.
type HeldBy struct {
	Sink  string `json:"sink"`
	Lanes []int  `json:"lanes" doc:"whose calls are not sent; none if the sink is not listed"`
	Calls int64  `json:"calls" doc:"of the sink in the segment, that are to be sent"`
	Why   string `json:"why" doc:"behind, unlisted or cursor"`
}

// Why a segment is held.
const (
	heldBehind   = "behind"   // calls of listed sinks are to be sent
	heldUnlisted = "unlisted" // no relay lists the sink
	heldCursor   = "cursor"   // no call is to be sent, but the next pass must begin
)

// String says it in a sentence.
func (h *HeldBy) String() string {
	switch h.Why {
	case heldUnlisted:
		return fmt.Sprintf("no relay lists sink %s (%d calls)", h.Sink, h.Calls)
	case heldCursor:
		return fmt.Sprintf("cursors of sink %s are before it, with nothing to send: a relay moves them", h.Sink)
	}
	return fmt.Sprintf("sink %s is behind (%d calls in %d lanes)", h.Sink, h.Calls, len(h.Lanes))
}

// OutboxReport is the calls to be sent, the relays that send them, and the segments of the outbox's
// log.
type OutboxReport struct {
	// false if counting calls took too long: then pending, undelivered, in_pass and ages are nil,
	// and held_by names only cursors
	Counted bool            `json:"counted" doc:"above"`
	Sinks   []OutboxSink    `json:"sinks" doc:"by name"`
	Ring    []OutboxSegment `json:"ring" doc:"by slot"`
}

// OutboxQuestion is the input of [Outbox].
type OutboxQuestion struct {
	Sink       string        // only this sink; empty: all
	CountLimit time.Duration // for how long pending calls are counted; 0: CountLimit of this package
}

// Outbox returns the state of the outbox, on one snapshot. A sink that is not known is ErrNotFound.
//
// It reads the rows of sinks, lanes and segments, of which there are few; the index entries of
// calls that are to be sent, for at most CountLimit; and the rows of onlyonce.parked that are not
// settled, without bodies.
func Outbox(ctx context.Context, db DB, q OutboxQuestion) (r *OutboxReport, err error) {
	return Look(ctx, db, func(tx pgx.Tx) (*OutboxReport, error) { return ReadOutbox(ctx, tx, q) })
}

// ReadOutbox reads the report on a snapshot.
func ReadOutbox(ctx context.Context, tx pgx.Tx, q OutboxQuestion) (*OutboxReport, error) {
	r := &OutboxReport{}
	sink := OrNull(q.Sink)
	var err error
	if r.Sinks, err = Collect[OutboxSink](ctx, tx, logSinksSQL, sink); err != nil {
		return nil, err
	}
	aside, err := countParkedCalls(ctx, tx, q.Sink, q.CountLimit)
	if err != nil {
		return nil, err
	}
	r.addSinks(aside)
	if len(r.Sinks) == 0 && sink != nil {
		return nil, UnknownSink(ctx, tx, *sink)
	}
	lanes, err := Collect[OutboxLane](ctx, tx, LanesSQL, sink)
	if err != nil {
		return nil, err
	}
	rates, err := Rates(ctx, tx, sink, nil)
	if err != nil {
		return nil, err
	}
	if r.Ring, err = Collect[OutboxSegment](ctx, tx, RingSQL); err != nil {
		return nil, err
	}
	waiting, err := CollectWithin[WaitingCalls](ctx, tx, q.CountLimit, WaitingCallsSQL, sink)
	if err != nil {
		return nil, err
	}
	unsent, err := Unsent(ctx, tx, q.CountLimit, sink)
	if err != nil {
		return nil, err
	}
	r.Counted = waiting != nil && unsent != nil && aside != nil
	undelivered := SumCalls(waiting, unsent)

	unheld := Unheld(lanes, waiting)
	for i := range r.Sinks {
		s := &r.Sinks[i]
		if at := slices.IndexFunc(unheld, func(u UnheldCalls) bool { return u.Sink == s.Sink }); at >= 0 {
			s.Unheld = &unheld[at]
		}
		s.Parked = []ParkedCalls{}
		s.Lanes = []*OutboxLane{}
		s.Rates = []SinkRate{}
		for _, rate := range rates {
			if rate.Sink == s.Sink {
				s.Rates = append(s.Rates, rate)
			}
		}
		for j := range lanes {
			if l := &lanes[j]; l.Sink == s.Sink {
				s.Lanes = append(s.Lanes, l)
			}
		}
		for _, p := range aside {
			if p.Sink == s.Sink {
				s.Parked = append(s.Parked, p)
			}
		}
		if r.Counted {
			s.count(waiting)
			s.Undelivered = &PendingCalls{Sink: s.Sink}
			if at := slices.IndexFunc(undelivered, func(o PendingCalls) bool { return o.Sink == s.Sink }); at >= 0 {
				s.Undelivered = &undelivered[at]
			}
		}
	}
	for i := range r.Ring {
		g := &r.Ring[i]
		g.judge(waiting, sink)
	}
	return r, nil
}

// addSinks adds the sinks that only parked calls name, by name.
func (r *OutboxReport) addSinks(aside []ParkedCalls) {
	for _, p := range aside {
		if !slices.ContainsFunc(r.Sinks, func(s OutboxSink) bool { return s.Sink == p.Sink }) {
			r.Sinks = append(r.Sinks, OutboxSink{Sink: p.Sink})
		}
	}
	slices.SortFunc(r.Sinks, func(a, b OutboxSink) int { return strings.Compare(a.Sink, b.Sink) })
}

// count adds up what waits of the sink.
func (s *OutboxSink) count(waiting []WaitingCalls) {
	older := func(age **float64, than *float64) {
		if than != nil && (*age == nil || **age < *than) {
			*age = than
		}
	}
	s.Pending = new(int64)
	for _, l := range s.Lanes {
		l.Pending = new(int64)
		l.InPass = new(int64)
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

// judge finds what keeps the segment from being emptied. The current one and those that are free
// wait for nothing.
func (g *OutboxSegment) judge(waiting []WaitingCalls, sink *string) {
	g.HeldBy = []HeldBy{}
	if g.State == "current" || g.State == "free" {
		return
	}
	find := func(sink string) *HeldBy {
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
			g.HeldBy = append(g.HeldBy, HeldBy{Sink: w.Sink, Lanes: []int{}, Why: heldUnlisted})
			h = &g.HeldBy[len(g.HeldBy)-1]
		}
		h.Calls += w.Calls
		if w.Lane != nil {
			h.Why = heldBehind
			h.Lanes = append(h.Lanes, int(*w.Lane))
		}
	}
	for _, behind := range g.Behind {
		if find(behind) == nil && (sink == nil || *sink == behind) {
			g.HeldBy = append(g.HeldBy, HeldBy{Sink: behind, Lanes: []int{}, Why: heldCursor})
		}
	}
}

// UnknownSink is the error for a sink that is not in the database. It names the sinks there are.
func UnknownSink(ctx context.Context, tx pgx.Tx, name string) error {
	names, err := Texts(ctx, tx, sinkNamesSQL)
	if err != nil {
		return err
	}
	have := "no relay has listed one yet"
	if len(names) > 0 {
		have = "relays have listed " + strings.Join(names, ", ")
	}
	return &Refusal{Kind: NotFound, Reason: fmt.Sprintf("`Sink`: there is no sink %q: %s", name, have)}
}
