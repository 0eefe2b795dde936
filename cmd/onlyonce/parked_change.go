package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// pickSQL picks parked messages, oldest first. In: ids (null: any), scope, topic, partition, reason (each may be null: any), states, and
// how many rows. Rows of reason conflict only where the reason says so or the ids are given. By the primary key, or by the index
// parked_position where a scope is given. No bodies.
const pickSQL = `
select p.id, p.kind, p.state, p.reason, p.scope, p.topic, p.partition, p."offset", p.order_key::text as order_key,
       (select f.id from onlyonce.parked f
         where f.order_key = p.order_key and f.settled_at is null and (f.partition, f."offset") < (p.partition, p."offset")
         order by f.partition, f."offset" limit 1) as head
  from onlyonce.parked p
 where p.kind = 'message' and p.settled_at is null and p.state = any ($6::text[])
   and ($1::bigint[] is null or p.id = any ($1))
   and ($2::text is null or p.scope = $2) and ($3::text is null or p.topic = $3) and ($4::integer is null or p.partition = $4)
   and case when $5::text is not null then p.reason = $5 else $1::bigint[] is not null or p.reason <> 'conflict' end
 order by p.id limit $7`

// lockPickedSQL locks parked rows. In: ids. It waits for an attempt at one of them that is under way, which holds the row from its first
// statement on: what became of it shows only to a statement after this one. In the order of ids, as every command does.
const lockPickedSQL = `select id from onlyonce.parked where id = any ($1::bigint[]) order by id for update`

// oneSQL tells why a row cannot be picked. In: id. One row, or none. By the primary key.
const oneSQL = `select kind, state, reason from onlyonce.parked where id = $1`

// redriveSQL makes parked messages due, with all attempts before them. In: ids. Under the lock on the rows.
const redriveSQL = `
update onlyonce.parked set state = 'retrying', next_attempt_at = clock_timestamp(), attempts = 0
 where id = any ($1::bigint[]) and kind = 'message' and state = 'waiting'`

// discardSQL settles parked messages without applying them. In: ids. Under the lock on the rows.
const discardSQL = `
update onlyonce.parked set state = 'discarded', settled_at = clock_timestamp(), next_attempt_at = null
 where id = any ($1::bigint[]) and kind = 'message' and state in ('waiting', 'blocked', 'retrying')`

// promoteSQL makes the first row of an ordering key due; see the function's comment in the migration. In: ordering key.
const promoteSQL = `select onlyonce.promote($1::uuid)`

// pickedRow is a parked message that a command is about.
type pickedRow struct {
	ID        int64   `json:"id"`
	Kind      string  `json:"-"`
	State     string  `json:"state"`
	Reason    string  `json:"reason"`
	Scope     string  `json:"-"`
	Topic     *string `json:"topic"`
	Partition *int32  `json:"partition"`
	Offset    *int64  `json:"offset"`
	OrderKey  *string `json:"order_key"`
	Head      *int64  `json:"-"` // first unsettled row of its ordering key, where that is another one
}

// selection is which parked rows a command is about, as the operator asks for them.
type selection struct {
	consent
	cursorFilter
	id           *int64
	parkedReason *string
	limit        *int64
	discard      bool

	ids     []int64 // that were picked first, nil before
	limited bool    // there were more
}

// selected is what came of it, and the detail of its audit row.
type selected struct {
	Filter map[string]any `json:"filter"`
	Count  int            `json:"count"`
	IDs    []int64        `json:"ids"`
	Rows   []pickedRow    `json:"rows,omitempty"` // of a discard: what is given up
	rows   []pickedRow
}

var messageReasons = []string{"permanent", "exhausted", "crashed", "conflict", "no-key", "failed", "behind"}

const selectors = "(-id N | -scope S [-topic T [-partition P]] [-parked-reason R] [-limit N])"

func parkedRedriveCommand() command {
	return command{
		name:    "parked redrive",
		args:    "[-postgres URL] " + selectors + " -reason WHY [-yes]",
		summary: "have parked messages tried again",
		help: `
Has messages that wait for an operator tried again: one by its id, or those of a scope that the flags pick, oldest first. They
become due at once, with as many attempts as a new message has. It shows them and asks first, unless -yes is given, and writes an
audit row.

It is the consumer of that scope which applies them, within a second or two if it runs, else when it starts; one that fails
again at all its attempts waits again. Each is applied once at most, with its position and its id as they are, so calls that it
enqueues keep their keys. Order within an ordering key is kept: a message is not tried before those in front of it are
settled, and those that are blocked behind it follow by themselves. So what is blocked cannot be redriven: redrive or discard
the first of its key.

Messages of reason conflict (an id that was used before for another payload) are left out unless -id or -parked-reason conflict
picks them. Calls and events cannot be redriven yet.

Example:
  onlyonce parked redrive -scope stock -topic orders -parked-reason exhausted -reason "table is back, INC-7"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			return selectionFlags(fs, &selection{})
		},
	}
}

func parkedDiscardCommand() command {
	return command{
		name:    "parked discard",
		args:    "[-postgres URL] " + selectors + " -reason WHY [-yes]",
		summary: "give parked messages up: they are never applied",
		help: `
Gives parked messages up: one by its id, or those of a scope that the flags pick, oldest first. They are never applied. It shows them
and asks first, unless -yes is given, and writes an audit row. The rows stay, with all that is in them.

An attempt that is under way is waited for: what it applies is not discarded. A discarded message's id stays claimed, so copies that
come later are duplicates and are not applied either (messages of reason conflict and no-key have claimed none). Messages that are blocked behind
it in their ordering key are tried next.

Messages of reason conflict are left out unless -id or -parked-reason conflict picks them. Calls and events cannot be
discarded yet.

Example:
  onlyonce parked discard -id 4711 -reason "test order, INC-7"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			return selectionFlags(fs, &selection{discard: true})
		},
	}
}

func selectionFlags(fs *flag.FlagSet, ask *selection) func(context.Context, *app) error {
	address := postgresVar(fs)
	numberVar(fs, &ask.id, "id", "the row's id `N`, as `onlyonce parked list` shows it", 1, math.MaxInt64)
	ask.cursorFilter.flags(fs)
	choiceVar(fs, &ask.parkedReason, "parked-reason", "only rows that were parked for the reason `R`: "+strings.Join(messageReasons, ", "), messageReasons...)
	numberVar(fs, &ask.limit, "limit", fmt.Sprintf("at most `N` rows, from 1 to %d (default %d)", mostLimit, defaultLimit), 1, mostLimit)
	ask.consent.flags(fs)
	return func(ctx context.Context, a *app) error { return a.settleParked(ctx, *address, ask) }
}

// faults refuses flags that do not go together.
func (q *selection) faults() error {
	filtered := q.topic != nil || q.partition != nil || q.parkedReason != nil || q.limit != nil
	switch {
	case q.id != nil && (q.scope != nil || filtered):
		return usagef("-id picks one row: it goes with none of -scope, -topic, -partition, -parked-reason and -limit")
	case q.id == nil && q.scope == nil:
		return missing(given{"-id or -scope", false}, given{"-reason", q.reason != nil})
	case q.partition != nil && q.topic == nil:
		return usagef("-partition needs -topic")
	}
	return missing(given{"-reason", q.reason != nil})
}

func (a *app) settleParked(ctx context.Context, address string, ask *selection) error {
	if err := ask.faults(); err != nil {
		return err
	}
	k := changeKind{action: "parked redrive", subject: "one of the rows", waiting: "waiting for another transaction", look: "onlyonce parked list"}
	if ask.discard {
		k.action, k.waiting = "parked discard", "waiting for an attempt at one of the messages to end"
	}
	return change(ctx, a, address, k, ask.consent, ask, func(ctx context.Context, db *database, done *selected, audit int64) error {
		if !ask.discard {
			_, _ = fmt.Fprintf(a.out, "Done: %d are due now; audit row %d. The consumer of scope %s applies them, within a second or two if it runs.\n",
				done.Count, audit, cell(done.rows[0].Scope))
			return nil
		}
		_, _ = fmt.Fprintf(a.out, "Done: %d discarded; audit row %d.\n", done.Count, audit)
		promoted, err := promote(ctx, db, done.rows)
		switch {
		case err != nil:
			// Nothing is lost: every consumer looks for keys that are blocked behind nothing, at its start and every few minutes.
			a.complain("what was blocked behind them is tried only after some minutes: %v", db.explain(err))
		case promoted > 0:
			_, _ = fmt.Fprintf(a.out, "%d that were blocked behind them are due now.\n", promoted)
		}
		return nil
	})
}

// promote makes due what was blocked behind rows that are settled. After the commit that settled them, in a transaction of its own: a
// message that was parked behind them meanwhile shows to nobody who looks before that.
func promote(ctx context.Context, db *database, rows []pickedRow) (promoted int, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancel()
	keys := map[string]bool{}
	for _, r := range rows {
		if r.OrderKey != nil {
			keys[*r.OrderKey] = true
		}
	}
	for key := range keys {
		var id *int64
		if err := db.QueryRow(ctx, promoteSQL, key).Scan(&id); err != nil {
			return promoted, err
		}
		if id != nil {
			promoted++
		}
	}
	return promoted, nil
}

func (q *selection) lock(ctx context.Context, tx pgx.Tx) error {
	if q.ids == nil {
		if _, err := q.read(ctx, tx); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, lockPickedSQL, q.ids)
	return err
}

func (q *selection) read(ctx context.Context, tx pgx.Tx) (*selected, error) {
	limit := int64(defaultLimit)
	if q.limit != nil {
		limit = *q.limit
	}
	ids := q.ids
	if ids == nil && q.id != nil {
		ids = []int64{*q.id}
	}
	states := []string{"waiting"}
	if q.discard {
		states = []string{"waiting", "blocked", "retrying"}
	}
	rows, err := collect[pickedRow](ctx, tx, pickSQL, ids, q.scope, q.topic, q.partition, q.parkedReason, states, limit+1)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, q.none(ctx, tx)
	}
	d := &selected{Filter: q.filter()}
	d.rows = rows[:min(len(rows), int(limit))]
	d.Count = len(d.rows)
	for _, r := range d.rows {
		d.IDs = append(d.IDs, r.ID)
	}
	if q.ids == nil {
		q.ids, q.limited = d.IDs, len(rows) > int(limit)
	}
	if q.discard {
		d.Rows = d.rows
	}
	return d, nil
}

// filter is what was asked for, for the audit row.
func (q *selection) filter() map[string]any {
	f := map[string]any{}
	for name, p := range map[string]*string{"scope": q.scope, "topic": q.topic, "parked_reason": q.parkedReason} {
		if p != nil {
			f[name] = *p
		}
	}
	for name, p := range map[string]*int64{"id": q.id, "partition": q.partition, "limit": q.limit} {
		if p != nil {
			f[name] = *p
		}
	}
	return f
}

// none says why nothing was picked.
func (q *selection) none(ctx context.Context, tx pgx.Tx) error {
	if q.id == nil {
		return &refusal{"nothing is parked that this asks for and that could be changed: `onlyonce parked list` shows what there is"}
	}
	type one struct{ Kind, State, Reason string }
	rows, err := collect[one](ctx, tx, oneSQL, *q.id)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return usagef("-id: there is no parked row %d", *q.id)
	}
	r := rows[0]
	switch {
	case r.Kind != "message":
		return &refusal{fmt.Sprintf("row %d is a parked %s, and nothing was done: this version redrives and discards messages only; it comes with the next version of the relay", *q.id, r.Kind)}
	case r.State == "resolved" || r.State == "discarded":
		return &refusal{fmt.Sprintf("row %d is settled (%s), and nothing was done", *q.id, r.State)}
	case r.State == "retrying":
		return &refusal{fmt.Sprintf("row %d is being tried again already, and nothing was done", *q.id)}
	case r.State == "blocked":
		head, err := q.head(ctx, tx)
		if err != nil {
			return err
		}
		return &refusal{fmt.Sprintf("row %d is blocked behind another of its ordering key, and nothing was done: redrive or discard that one first%s", *q.id, head)}
	}
	return &refusal{fmt.Sprintf("row %d is in state %s, and nothing was done", *q.id, r.State)}
}

// head names the row that blocks the one that was asked for.
func (q *selection) head(ctx context.Context, tx pgx.Tx) (string, error) {
	rows, err := collect[pickedRow](ctx, tx, pickSQL, []int64{*q.id}, (*string)(nil), (*string)(nil), (*int64)(nil), (*string)(nil), []string{"blocked"}, 1)
	if err != nil || len(rows) == 0 || rows[0].Head == nil {
		return "", err
	}
	return fmt.Sprintf(": -id %d", *rows[0].Head), nil
}

// differs: more may have been parked meanwhile, which was not picked. What was shown must still be there.
func (q *selection) differs(shown, now *selected) bool { return !slices.Equal(shown.IDs, now.IDs) }

func (q *selection) do(ctx context.Context, tx pgx.Tx, now *selected) (*selected, error) {
	sql := redriveSQL
	if q.discard {
		sql = discardSQL
	}
	tag, err := tx.Exec(ctx, sql, now.IDs)
	if err == nil && tag.RowsAffected() != int64(now.Count) {
		err = fmt.Errorf("%d of %d locked rows were changed", tag.RowsAffected(), now.Count)
	}
	return now, err
}

func (q *selection) write(a *app, d *selected) {
	const most = 20
	var cells [][]string
	behind := 0
	for i, r := range d.rows {
		if r.Head != nil {
			behind++
		}
		if i >= most {
			continue
		}
		p := parkedRow{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}
		cells = append(cells, []string{number(r.ID), r.State, r.Reason, r.Scope, p.origin(), numberOrDash(r.Head)})
	}
	writeTable(a.out, []string{"ID", "STATE", "REASON", "SCOPE", "ORIGIN", "BEHIND"}, cells)
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	if n := len(d.rows) - most; n > 0 {
		say("and %d more", n)
	}
	if q.discard {
		say("Discard %d: they are never applied, and copies of them that come later are not either.", d.Count)
	} else {
		say("Redrive %d: each is tried again as a new message is.", d.Count)
		if behind > 0 {
			say("%d of them stand behind others of their ordering key (BEHIND names the first), and are tried only once those are settled.", behind)
		}
	}
	if q.limited {
		say("There are more: the limit was reached.")
	}
}
