package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// entry is a call that a producer has committed.
type entry struct {
	ID   string
	Sink string
	Key  string
	Seq  int64
	Fate string
}

// row is a call as the outbox has it.
type row struct {
	ID       string
	Key      string // idempotency key
	Sink     string
	State    string
	Reason   string
	OrderKey string
	Attempts int
	At       int64 // its id in the log
}

// facts are what there is to judge, when nothing happens any more.
type facts struct {
	ledger []entry
	rows   []row
	sights map[string]*sight
	// odd tells what must not be: leases that are held, work that is left.
	odd       []string
	strange   []string
	unsettled int
	endings   []string // with what errors relays ended
}

const rowsSQL = `
select convert_from(r.body, 'UTF8')::jsonb->>'id', r.key::text, r.sink, c.state, coalesce(p.reason, ''), coalesce(r.order_key::text, ''), coalesce(p.attempts, 0), r.id
  from onlyonce.outbox_log r join onlyonce.calls c on c.id = r.id left join onlyonce.parked p on p.row_id = r.id`

// oddSQL returns a row for each thing that must not be once all relays have left in order. Leases of those that were killed end by themselves: nobody
// holds them.
const oddSQL = `
select format('I14 lease %s is held', name) from onlyonce.leases where until > clock_timestamp()
union all
select format('I13 call %s is parked as %s and nothing is said of it in the log', p.id, p.state) from onlyonce.parked p
 where p.kind = 'call' and not exists (select from onlyonce.outbox_log r where r.id = p.row_id and r.key = p.key)
union all
select format('I9 call %s is settled as %s at %s', p.row_id, p.state, p.settled_at) from onlyonce.parked p
 where p.kind = 'call' and (p.state in ('resolved', 'discarded')) <> (p.settled_at is not null)
union all
select format('I13 connection of a relay is left: %s', left(query, 80)) from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid() and query like '%onlyonce.hold%'`

// gather reads everything. Relays have left; leases of the killed have their time.
func (s *storm) gather(ctx context.Context) (*facts, error) {
	f := &facts{sights: s.remote.sights(), strange: s.remote.strange, endings: s.fleet.Endings()}
	read := func(sql string, into any) error {
		rows, err := s.pool.Query(ctx, sql)
		if err != nil {
			return err
		}
		switch v := into.(type) {
		case *[]entry:
			*v, err = pgx.CollectRows(rows, pgx.RowToStructByPos[entry])
		case *[]row:
			*v, err = pgx.CollectRows(rows, pgx.RowToStructByPos[row])
		case *[]string:
			*v, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		return err
	}
	for end := time.Now().Add(2 * leaseTTL); ; pause(ctx, pollEvery) {
		if err := read(oddSQL, &f.odd); err != nil {
			return nil, err
		}
		if len(f.odd) == 0 || time.Now().After(end) {
			break
		}
	}
	if err := read(`select id, sink, key, seq, fate from storm.calls`, &f.ledger); err != nil {
		return nil, err
	}
	if err := read(rowsSQL, &f.rows); err != nil {
		return nil, err
	}
	n, err := s.unsettled(ctx)
	f.unsettled = n
	return f, err
}

// count takes over what the facts tell.
func (f *facts) count(r *report) {
	r.Calls = len(f.ledger)
	for _, x := range f.rows {
		switch x.State {
		case "delivered":
			r.Delivered++
		case "reconcile":
			r.Reconcile++
		case "waiting":
			r.Rejected++
		case "blocked":
			r.Blocked++
		}
	}
	for _, s := range f.sights {
		r.Requests += s.n
		if s.n > 1 {
			r.Repeated++
		}
	}
}

// judge returns what does not hold.
func (f *facts) judge() (breaches []string) {
	found := map[string][]string{}
	breach := func(rule, what string) { found[rule] = append(found[rule], what) }

	ledger := map[string]entry{}
	for _, e := range f.ledger {
		ledger[e.ID] = e
	}
	rows := map[string]row{}
	for _, x := range f.rows {
		if _, twice := rows[x.ID]; twice {
			breach("I9 more than one row of the outbox for a call", x.ID)
		}
		rows[x.ID] = x
		if _, there := ledger[x.ID]; !there {
			breach("I9 a row of the outbox that nobody committed", x.ID)
		}
	}
	for id, s := range f.sights {
		if _, there := ledger[id]; !there {
			breach("I9 a call went out that was rolled back", id)
		}
		if len(s.keys) != 1 {
			breach("I9 a call went out under several keys", id)
		} else if x, there := rows[id]; there && s.keys[0] != x.Key {
			breach("I9 a call went out under another key than its row's", id)
		}
		if len(s.prints) != 1 {
			breach("I9 a call went out with different bytes", id)
		}
		if ledger[id].Sink == sinkShort && s.oldest > shortWindow {
			breach("I10 a call went out after the remote may have forgotten its key", fmt.Sprintf("%s after %v", id, s.oldest))
		}
	}
	keys := map[string]string{}
	heads := map[string]int64{} // order key -> the first dead row
	for _, x := range f.rows {
		if other, taken := keys[x.Key]; taken {
			breach("I9 two calls have one key", x.ID+" and "+other)
		}
		keys[x.Key] = x.ID
		if x.OrderKey != "" && (x.State == "waiting" || x.State == "reconcile") && x.Sink == sinkStrict {
			if at, there := heads[x.OrderKey]; !there || x.At < at {
				heads[x.OrderKey] = x.At
			}
		}
	}
	for _, e := range f.ledger {
		f.judgeCall(e, rows, heads, breach)
	}
	f.judgeOrder(breach)
	if f.unsettled > 0 {
		breach("I13 calls are left to be sent or tried again", fmt.Sprint(f.unsettled))
	}
	for _, s := range f.odd {
		rule, what, _ := strings.Cut(s, " ")
		breach(rule, what)
	}
	for _, s := range f.strange {
		breach("I9 a request that was never enqueued", s)
	}
	for _, s := range f.endings {
		if strings.Contains(s, "OO00") || strings.Contains(s, "are gone") || strings.Contains(s, "does not return") {
			breach("a relay gave up", s)
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(found)) {
		what := found[rule]
		slices.Sort(what)
		breaches = append(breaches, fmt.Sprintf("%s: %d (%s)", rule, len(what), strings.Join(what[:min(len(what), 5)], ", ")))
	}
	return breaches
}

// judgeCall compares one call's end with what the remote knows.
func (f *facts) judgeCall(e entry, rows map[string]row, heads map[string]int64, breach func(rule, what string)) {
	x, there := rows[e.ID]
	if !there {
		breach("I9 a committed call is not in the outbox", e.ID)
		return
	}
	s := f.sights[e.ID]
	if s == nil {
		s = &sight{}
	}
	head, dead := heads[x.OrderKey]
	behind := dead && head < x.At
	told := fmt.Sprintf("%s (%s %s)", e.ID, x.State, x.Reason)
	switch {
	case behind && x.State != "blocked":
		breach("O4 a call is not blocked behind a dead one of its ordering key", told)
	case behind && s.n > 0:
		breach("O4 a call went out behind a dead one of its ordering key", told)
	case behind:
	case x.State == "delivered" && s.accepted == 0:
		breach("I9 delivered, and the remote never accepted it", told)
	case x.State == "delivered":
	case x.State == "waiting" && x.Reason == "rejected" && e.Fate == fateReject && s.refused:
	case x.State == "reconcile" && x.Reason == "window" && x.Sink == sinkShort:
		// The remote failed it, or the relays were away; the journal says that it may have been called.
	default:
		breach("I9 a call ended for no cause that the remote knows", told)
	}
	if e.Fate == fateReject && x.State == "delivered" {
		// Applied with a fault in the answer is possible; a final yes is not.
		breach("I9 delivered, and the remote rejects it", told)
	}
}

// judgeOrder compares the order of first acceptances with that of the commits.
func (f *facts) judgeOrder(breach func(rule, what string)) {
	type accepted struct {
		id      string
		seq, at int64
	}
	byKey := map[string][]accepted{}
	for _, e := range f.ledger {
		if s := f.sights[e.ID]; e.Key != "" && s != nil && s.accepted > 0 {
			k := e.Sink + "/" + e.Key
			byKey[k] = append(byKey[k], accepted{e.ID, e.Seq, s.accepted})
		}
	}
	for _, calls := range byKey {
		slices.SortFunc(calls, func(a, b accepted) int { return cmp.Compare(a.seq, b.seq) })
		for i := 1; i < len(calls); i++ {
			if calls[i].at < calls[i-1].at {
				breach("O4 accepted before an earlier call of the ordering key", fmt.Sprintf("%s before %s", calls[i].id, calls[i-1].id))
			}
			if calls[i].seq == calls[i-1].seq {
				breach("O4 two calls of an ordering key have one number", calls[i].id)
			}
		}
	}
}
