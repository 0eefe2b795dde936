package callcheck

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Entry is a call that a producer has committed.
type Entry struct {
	ID   string
	Sink string
	Key  string
	Seq  int64
	Fate string
}

// Row is a call as the outbox has it.
type Row struct {
	ID       string
	Key      string // idempotency key
	Sink     string
	State    string
	Reason   string
	OrderKey string
	Attempts int
	At       int64 // its id in the log
}

// Facts are all that is judged, after no more happens.
type Facts struct {
	Ledger []Entry
	Rows   []Row
	Sights map[string]*Sight
	// Odd lists leases that are still held and work that is left, which must not be. Each begins
	// with its rule.
	Odd       []string
	Strange   []string
	Unsettled int

	// Windows are the sinks whose remote forgets keys, and after how long.
	Windows map[string]time.Duration
	// PassOn are the sinks whose calls pass a parked one of their ordering key.
	PassOn map[string]bool
}

const rowsSQL = `
select convert_from(r.body, 'UTF8')::jsonb->>'id',
       r.key::text,
       r.sink,
       c.state,
       coalesce(p.reason, ''),
       coalesce(r.order_key::text, ''),
       coalesce(p.attempts, 0),
       r.id
  from onlyonce.outbox_log r join onlyonce.calls c on c.id = r.id left join onlyonce.parked p on p.row_id = r.id`

// oddSQL returns a row for each thing that must not be once all relays have left in order. Leases
// of those that were killed end by themselves, and have no holder then. Those of the inbox take up
// to a minute for that, and are not checked. The pattern of the last part does not match its own
// text, which another connection of the checker's pool may have had before.
const oddSQL = `
select format('I14 lease %s is held', name)
  from onlyonce.leases
 where until > clock_timestamp()
   and until < clock_timestamp() + interval '1 hour'
   and (name like 'relay/%' or name = 'ring/outbox')
union all
select format('I13 call %s is parked as %s and nothing is said of it in the log', p.id, p.state) from onlyonce.parked p
 where p.kind = 'call' and not exists (select from onlyonce.outbox_log r where r.id = p.row_id and r.key = p.key)
union all
select format('I9 call %s is settled as %s at %s', p.row_id, p.state, p.settled_at) from onlyonce.parked p
 where p.kind = 'call' and (p.state in ('resolved', 'discarded')) <> (p.settled_at is not null)
union all
select format('I13 connection of a relay is left: %s', left(query, 80)) from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid() and query ~ 'onlyonce[.]hold'`

// UnsettledSQL returns one row: how many calls will still change by themselves. A call that is
// blocked by a rejected head waits for an operator.
const UnsettledSQL = `
select count(*) from onlyonce.calls c
 where c.state = 'pending' or c.state = 'retrying'
    or c.state = 'blocked' and not exists (
         select from onlyonce.parked f
          where f.order_key = c.order_key and f.settled_at is null and f.state in ('waiting', 'reconcile'))`

// Gather reads everything. The relays have left. Leases of the killed ones get a grace period to
// end.
func Gather(ctx context.Context, pool *pgxpool.Pool, m *Remote, grace time.Duration) (*Facts, error) {
	f := &Facts{Sights: m.Sights(), Strange: m.Strange()}
	var err error
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(grace); ; <-tick.C {
		if f.Odd, err = collect(ctx, pool, oddSQL, pgx.RowTo[string]); err != nil {
			return nil, err
		}
		if len(f.Odd) == 0 || time.Now().After(end) {
			break
		}
	}
	if f.Ledger, err = collect(ctx, pool, `
select id,
       sink,
       key,
       seq,
       fate
  from storm.calls`, pgx.RowToStructByPos[Entry]); err != nil {
		return nil, err
	}
	if f.Rows, err = collect(ctx, pool, rowsSQL, pgx.RowToStructByPos[Row]); err != nil {
		return nil, err
	}
	return f, pool.QueryRow(ctx, UnsettledSQL).Scan(&f.Unsettled)
}

func collect[T any](ctx context.Context, pool *pgxpool.Pool, sql string, scan pgx.RowToFunc[T]) ([]T, error) {
	rows, err := pool.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// Judge returns what does not hold.
func (f *Facts) Judge() (breaches []string) {
	found := map[string][]string{}
	breach := func(rule, what string) { found[rule] = append(found[rule], what) }

	ledger := map[string]Entry{}
	for _, e := range f.Ledger {
		ledger[e.ID] = e
	}
	rows := map[string]Row{}
	for _, x := range f.Rows {
		if _, twice := rows[x.ID]; twice {
			breach("I9 more than one row of the outbox for a call", x.ID)
		}
		rows[x.ID] = x
		if _, there := ledger[x.ID]; !there {
			breach("I9 a row of the outbox that nobody committed", x.ID)
		}
	}
	for id, s := range f.Sights {
		if _, there := ledger[id]; !there {
			breach("I9 a call went out that was rolled back", id)
		}
		if len(s.Keys) != 1 {
			breach("I9 a call went out under several keys", id)
		} else if x, there := rows[id]; there && s.Keys[0] != x.Key {
			breach("I9 a call went out under another key than its row's", id)
		}
		if len(s.Prints) != 1 {
			breach("I9 a call went out with different bytes", id)
		}
		if w := f.Windows[ledger[id].Sink]; w > 0 && s.Oldest > w {
			breach("I10 a call went out after the remote may have forgotten its key", fmt.Sprintf("%s after %v", id, s.Oldest))
		}
	}
	keys := map[string]string{}
	heads := map[string]int64{} // order key -> the first dead row
	for _, x := range f.Rows {
		if other, taken := keys[x.Key]; taken {
			breach("I9 two calls have one key", x.ID+" and "+other)
		}
		keys[x.Key] = x.ID
		stands := x.State == "waiting" || x.State == "reconcile"
		if x.OrderKey != "" && stands && !f.PassOn[x.Sink] {
			if at, there := heads[x.OrderKey]; !there || x.At < at {
				heads[x.OrderKey] = x.At
			}
		}
	}
	for _, e := range f.Ledger {
		f.judgeCall(e, rows, heads, breach)
	}
	f.judgeOrder(breach)
	if f.Unsettled > 0 {
		breach("I13 calls are left to be sent or tried again", fmt.Sprint(f.Unsettled))
	}
	for _, s := range f.Odd {
		rule, what, _ := strings.Cut(s, " ")
		breach(rule, what)
	}
	for _, s := range f.Strange {
		breach("I9 a request that was never enqueued", s)
	}
	for _, rule := range slices.Sorted(maps.Keys(found)) {
		what := found[rule]
		slices.Sort(what)
		breaches = append(breaches, fmt.Sprintf("%s: %d (%s)", rule, len(what), strings.Join(what[:min(len(what), 5)], ", ")))
	}
	return breaches
}

// judgeCall compares the outcome of one call with what the remote recorded.
func (f *Facts) judgeCall(e Entry, rows map[string]Row, heads map[string]int64, breach func(rule, what string)) {
	x, there := rows[e.ID]
	if !there {
		breach("I9 a committed call is not in the outbox", e.ID)
		return
	}
	s := f.Sights[e.ID]
	if s == nil {
		s = &Sight{}
	}
	head, dead := heads[x.OrderKey]
	behind := dead && head < x.At
	told := fmt.Sprintf("%s (%s %s)", e.ID, x.State, x.Reason)
	switch {
	case behind && x.State != "blocked":
		breach("O4 a call is not blocked behind a dead one of its ordering key", told)
	case behind && s.Requests > 0:
		breach("O4 a call went out behind a dead one of its ordering key", told)
	case behind:
	case x.State == "delivered" && s.Accepted == 0:
		breach("I9 delivered, and the remote never accepted it", told)
	case x.State == "delivered":
	case x.State == "waiting" && x.Reason == "rejected" && s.Refused:
	case x.State == "reconcile" && x.Reason == "window" && f.Windows[x.Sink] > 0:
		// The remote failed it, or the relays were away; the journal says that it may have been
		// called.
	default:
		breach("I9 a call ended for no cause that the remote knows", told)
	}
	if e.Fate == FateReject && x.State == "delivered" {
		// Applied with a fault in the answer is possible; an accepted answer is not.
		breach("I9 delivered, and the remote rejects it", told)
	}
}

// judgeOrder compares the order of first acceptances with that of the commits.
func (f *Facts) judgeOrder(breach func(rule, what string)) {
	type accepted struct {
		id      string
		seq, at int64
	}
	byKey := map[string][]accepted{}
	for _, e := range f.Ledger {
		if s := f.Sights[e.ID]; e.Key != "" && s != nil && s.Accepted > 0 {
			k := e.Sink + "/" + e.Key
			byKey[k] = append(byKey[k], accepted{e.ID, e.Seq, s.Accepted})
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
