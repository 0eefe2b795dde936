package onlyoncetest

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// state is what a history leaves: what must be the same after each of them.
type state struct {
	tables map[string]table
	calls  []Call
	parked []string
	// parkedFor are the messages that were parked without being refused for good, and why.
	parkedFor []string
	parkedAt  []parkedAt
	answers   []string
	// remotes is what took effect at remotes.
	remotes []string
	// requests are those that did not come from a relay.
	requests []request
	// order are the messages as they were handled. It is not compared.
	order []place
	// ordered: the calls came one after the other, so that their order is compared.
	ordered bool
	// leftOut are the columns that are not compared.
	leftOut []string
	// ids are those of stored events. They are compared between clean runs only.
	ids []string
	// asides are the reasons for which messages were set aside before a handler had them.
	asides []string
	// idle is work that the program has no part for, each with the reason. It is not compared.
	idle []string
}

// idleSQL returns a row for each kind of work that nothing has done.
const idleSQL = `
select 'the sending of calls (no relay runs)'
 where exists (select from onlyonce.batches) and not exists (select from onlyonce.sinks)
union all
select format('the handling of events (no part reads those of %s)', s.topic) from onlyonce.streams s
 where exists (select from onlyonce.event_log l where l.stream = s.id)
   and not exists (select from onlyonce.cursors c where c.topic = s.topic)
 order by 1`

// table is the contents of one table of the user's.
type table struct {
	rows int64
	hash string
	text []string // of each row, sorted; nil if there are more than mostRows
}

// mostRows is how many rows of a table are kept to be shown.
const mostRows = 2000

// parkedSQL returns a row for each message that is parked. Events that a receiver has set aside
// have no offset, and one row for each reason: a queue's messages without an id are parked as often
// as they are delivered.
const parkedSQL = `
select distinct format(
  '%s of %s/%s at %s: %s',
  kind,
  topic,
  partition,
  "offset",
  reason
) from onlyonce.parked
 where kind in ('message', 'event') and state not in ('resolved', 'discarded') order by 1`

// idsSQL returns a row for each stored event: its stream and id.
const idsSQL = `
select format('%s of %s', l.id, s.topic) from onlyonce.event_log l
  join onlyonce.streams s on s.id = l.stream order by 1`

// asidesSQL returns a row for each message that was set aside without a handler's fault.
const asidesSQL = `
select reason from onlyonce.parked
 where kind in ('message', 'event') and state not in ('resolved', 'discarded')
   and reason not in ('exhausted', 'crashed', 'failed', 'permanent', 'behind') order by 1`

// parkedAt is a message that failed for good, and why.
type parkedAt struct {
	place
	why string
}

// parkedForSQL returns a row for each message that is parked because its handler failed.
const parkedForSQL = `
select topic, partition, "offset", format(
  '%s/%s at %s (%s): %s',
  topic,
  partition,
  "offset",
  reason,
  left(error, 300)
) from onlyonce.parked
 where kind in ('message', 'event') and topic is not null and "offset" is not null
   and reason in ('exhausted', 'crashed', 'failed', 'permanent') and state not in ('resolved', 'discarded')
 order by 1, 2, 3`

// capture reads the state. Rows of a table are read if it has few, and if it differs from want's.
func capture(ctx context.Context, pool *pgxpool.Pool, c *Case) (*state, error) {
	want := c.clean
	s := &state{tables: map[string]table{}}
	shapes, err := readCatalog(ctx, pool, c.Volatile)
	if err != nil {
		return nil, err
	}
	s.leftOut = shapes.leftOut()
	from, to, err := c.times(ctx, pool)
	if err != nil {
		return nil, err
	}
	for _, x := range shapes.tables {
		if !x.rows {
			continue
		}
		t := table{}
		row := x.text(0)
		if c.Mask != "" {
			row = "regexp_replace(" + row + ", '" + strings.ReplaceAll(c.Mask, "'", "''") + "', '#', 'g')"
		}
		// The sum of hashes does not depend on the rows' order, and needs no sort.
		hash := `
select count(*), coalesce(sum(('x' || left(md5(` + row + `), 15))::bit(60)::bigint), 0)::text
  from ` + x.quoted + ` t0 where ` + useTimes
		if err := pool.QueryRow(ctx, hash, from, to).Scan(&t.rows, &t.hash); err != nil {
			return nil, err
		}
		if t.rows <= mostRows && (want == nil || want.tables[x.name].hash != t.hash) {
			if t.text, err = texts(ctx, pool, `select `+row+` from `+x.quoted+` t0 where `+useTimes+` order by 1`,
				from, to); err != nil {
				return nil, err
			}
		}
		s.tables[x.name] = t
	}
	if s.calls, err = Calls(ctx, pool); err != nil {
		return nil, err
	}
	if s.idle, err = texts(ctx, pool, idleSQL); err != nil {
		return nil, err
	}
	if s.ids, err = texts(ctx, pool, idsSQL); err != nil {
		return nil, err
	}
	if s.asides, err = texts(ctx, pool, asidesSQL); err != nil {
		return nil, err
	}
	for i := range s.calls {
		s.calls[i].Body, s.calls[i].Target = []byte(c.masked(string(s.calls[i].Body))), c.masked(s.calls[i].Target)
	}
	if s.parked, err = texts(ctx, pool, parkedSQL); err != nil {
		return nil, err
	}
	rows, err := pool.Query(ctx, parkedForSQL)
	if err != nil {
		return nil, err
	}
	s.parkedAt, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p parkedAt, err error) {
		err = row.Scan(&p.topic, &p.partition, &p.offset, &p.why)
		p.why, _, _ = strings.Cut(p.why, "\n")
		return p, err
	})
	return s, err
}

// useTimes gives both parameters a type, also for a table without times.
const useTimes = `($1::timestamptz <= $2::timestamptz)`

// around is how far the clocks of the program and the server may be apart.
const around = 10 * time.Second

// times returns the times between which a row was written in this Run.
func (c *Case) times(ctx context.Context, pool *pgxpool.Pool) (from, to time.Time, err error) {
	if err := pool.QueryRow(ctx, `select clock_timestamp()`).Scan(&to); err != nil {
		return from, to, err
	}
	return c.sent.Add(age - around), to.Add(around), nil
}

// age is how old the first records are when Run begins: so old that the program cannot have written
// a row at their time, by any clock.
const age = time.Minute

// texts returns the rows of a query that has one column.
func texts(ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) ([]string, error) {
	rows, err := pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// masked replaces what is not compared.
func (c *Case) masked(s string) string {
	if c.Mask == "" {
		return s
	}
	return regexp.MustCompile(c.Mask).ReplaceAllString(s, "#")
}

// Difference is a difference between the state after a history and that after a clean run.
type Difference struct {
	// What is a table, or "calls", "the order of calls", "requests", "answers", "remotes" or
	// "parked".
	What string `json:"what"`
	// Missing are rows that only the clean run has, and Extra those that only the history has.
	Missing []string `json:"missing,omitempty"`
	Extra   []string `json:"extra,omitempty"`
	// Note says more, for example how many rows a large table has.
	Note string `json:"note,omitempty"`
}

func (d Difference) String() string {
	var b strings.Builder
	b.WriteString(d.What + ":")
	if d.Note != "" {
		b.WriteString(" " + d.Note)
	}
	for _, list := range []struct {
		sign string
		rows []string
	}{{"-", d.Missing}, {"+", d.Extra}} {
		for i, r := range list.rows {
			if i == 5 {
				_, _ = fmt.Fprintf(&b, "\n      %s and %d more", list.sign, len(list.rows)-i)
				break
			}
			_, _ = fmt.Fprintf(&b, "\n      %s %.300s", list.sign, r)
		}
	}
	return b.String()
}

// compare returns what differs between a clean run's state and another one.
func compare(clean, got *state) (found []Difference) {
	all := map[string]table{}
	maps.Copy(all, clean.tables)
	maps.Copy(all, got.tables)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		a, inA := clean.tables[name]
		b, inB := got.tables[name]
		switch {
		case !inA:
			found = append(found, Difference{What: name, Note: "this table is not there after a clean run"})
		case !inB:
			found = append(found, Difference{What: name, Note: "this table is there after a clean run only"})
		case a.hash != b.hash || a.rows != b.rows:
			d := Difference{What: name}
			if a.text == nil || b.text == nil {
				d.Note = fmt.Sprintf("%d rows, %d after a clean run; too many to show", b.rows, a.rows)
			} else {
				d.Missing, d.Extra = multisets(a.text, b.text)
			}
			found = append(found, d)
		}
	}
	for _, x := range []struct {
		what        string
		clean, this []string
	}{
		{"calls", callLines(clean.calls), callLines(got.calls)},
		{"parked", clean.parked, got.parked},
		{"answers", clean.answers, got.answers},
		{"remotes", clean.remotes, got.remotes},
		{"requests", requestLines(clean.requests), requestLines(got.requests)},
	} {
		if missing, extra := multisets(x.clean, x.this); len(missing)+len(extra) > 0 {
			found = append(found, Difference{What: x.what, Missing: missing, Extra: extra})
		}
	}
	if d, other := otherOrder(clean, got); other {
		found = append(found, d)
	}
	return found
}

// otherOrder returns the first two calls under one ordering key that came in another order than in
// a clean run. Nothing is compared if the messages were handled in another order, which may be that
// of different keys or of a message that was tried again.
func otherOrder(clean, got *state) (d Difference, other bool) {
	if _, _, moved := reordered(clean.order, got.order); moved || !clean.ordered || !got.ordered {
		return d, false
	}
	sequences := func(calls []Call) map[string][]string {
		of := map[string][]string{}
		for _, c := range calls {
			if c.order != "" {
				of[c.order] = append(of[c.order], c.line())
			}
		}
		return of
	}
	a := sequences(clean.calls)
	b := sequences(got.calls)
	for _, key := range slices.Sorted(maps.Keys(a)) {
		if missing, extra := multisets(a[key], b[key]); len(missing)+len(extra) > 0 {
			continue // the calls themselves differ
		}
		for i, line := range a[key] {
			if b[key][i] != line {
				return Difference{What: orderOfCalls, Missing: []string{line}, Extra: []string{b[key][i]},
					Note: fmt.Sprintf("call %d of the %d under one OrderingKey", i+1, len(a[key]))}, true
			}
		}
	}
	return d, false
}

// orderOfCalls is what differs then.
const orderOfCalls = "the order of calls"

// multisets returns what is only in a, and only in b.
func multisets(a, b []string) (onlyA, onlyB []string) {
	n := map[string]int{}
	for _, s := range b {
		n[s]++
	}
	for _, s := range a {
		if n[s]--; n[s] < 0 {
			onlyA = append(onlyA, s)
		}
	}
	for _, s := range b {
		if n[s] > 0 {
			n[s]--
			onlyB = append(onlyB, s)
		}
	}
	return onlyA, onlyB
}

// line is all of a call that must be the same in each run.
func (c Call) line() string {
	body := string(c.Body)
	if c.Sealed {
		body = "(sealed)"
	}
	var h strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c.Header)) {
		if !traceHeader(name) {
			_, _ = fmt.Fprintf(&h, " %s: %s", name, strings.Join(c.Header[name], ", "))
		}
	}
	return fmt.Sprintf("%s/%s %s %s key %s%s body %s", c.Sink, c.Name, c.Method, c.Target, c.Key, h.String(), body)
}

// traceHeader reports whether a header identifies a trace, which differs at each run.
func traceHeader(name string) bool {
	switch strings.ToLower(name) {
	case "traceparent", "tracestate", "baggage", "b3", "x-request-id", "x-b3-traceid", "x-b3-spanid":
		return true
	}
	return false
}

func callLines(calls []Call) (l []string) {
	for _, c := range calls {
		l = append(l, c.line())
	}
	return l
}

func requestLines(all []request) (l []string) {
	for text, n := range countRequests(all) {
		for range n {
			l = append(l, text)
		}
	}
	slices.Sort(l)
	return l
}
