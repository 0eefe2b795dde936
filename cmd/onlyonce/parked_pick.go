package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const (
	kindMessage = "message"
	kindCall    = "call"
	kindEvent   = "event"
)

// pickSQL picks parked messages, calls or events, oldest first. In: ids (null: any), scope, topic, partition, reason (each may be null: any), states,
// how many rows, kinds, sink and name (null: any), whether a call that was erased or has no key will do, and whether only a rejected one will.
// Rows of reason conflict only where the reason says so or the ids are given. By the primary key, or by the index
// parked_position where a scope is given. No bodies.
const pickSQL = `
select p.id, p.kind, p.state, p.reason, p.scope, p.topic, p.partition, p."offset", p.order_key::text as order_key, p.sink, p.call_name as name,
       p.key::text as key, p.first_attempt_at is not null as attempted,
       (select f.id from onlyonce.parked f
         where f.order_key = p.order_key and f.settled_at is null and (f.partition, f."offset") < (p.partition, p."offset")
         order by f.partition, f."offset" limit 1) as head
  from onlyonce.parked p
 where p.kind = any ($8::text[]) and p.settled_at is null and p.state = any ($6::text[])
   and ($1::bigint[] is null or p.id = any ($1))
   and ($2::text is null or p.scope = $2) and ($3::text is null or p.topic = $3) and ($4::integer is null or p.partition = $4)
   and case when $5::text is not null then p.reason = $5 else $1::bigint[] is not null or p.reason <> 'conflict' end
   and ($9::text is null or p.sink = $9) and ($10::text is null or p.call_name = $10)
   and (p.kind <> 'call' or $11::boolean or p.erased_at is null and p.key is not null) and (not $12::boolean or p.reason = 'rejected')
 order by p.id limit $7`

// oneSQL tells why a row cannot be picked. In: id. One row, or none. By the primary key.
const oneSQL = `select kind, state, reason, key::text as key, erased_at is not null as erased from onlyonce.parked where id = $1`

// oneRow is a row that could not be picked.
type oneRow struct {
	Kind, State, Reason string
	Key                 *string
	Erased              bool
}

// pickedRow is a parked row that a command is about.
type pickedRow struct {
	ID        int64   `json:"id"`
	Kind      string  `json:"kind"`
	State     string  `json:"state"`
	Reason    string  `json:"reason"`
	Scope     string  `json:"-"`
	Topic     *string `json:"topic"`
	Partition *int32  `json:"partition"`
	Offset    *int64  `json:"offset"`
	OrderKey  *string `json:"order_key"`
	Sink      *string `json:"sink"`
	Name      *string `json:"name"`
	Key       *string `json:"key"`
	Attempted bool    `json:"attempted"` // a call may have been made
	Head      *int64  `json:"-"`         // first unsettled row of its ordering key, where that is another one
}

// selection is which parked rows a command is about, as the operator asks for them.
type selection struct {
	consent
	cursorFilter
	id           *int64
	kind, state  *string
	sink, name   *string // of calls
	parkedReason *string
	limit        *int64
	discard      bool

	applied, notApplied, newKey bool // what is known of calls, and what is to be done with them

	ids     []int64 // that were picked first, nil before
	limited bool    // there were more
}

// selected is what came of it, and the detail of its audit row.
type selected struct {
	Filter map[string]any `json:"filter"`
	Count  int            `json:"count"`
	IDs    []int64        `json:"ids"`
	Rows   []pickedRow    `json:"rows,omitempty"` // of a discard: what is given up
	Keys   []changedKey   `json:"keys,omitempty"`
	rows   []pickedRow
}

var parkedReasons = []string{"permanent", "exhausted", "crashed", "conflict", "no-key", "failed", "behind", "same-body", "stale", "forward", "scheduled", "cut", "completion", "rejected", "unopened", "window"}

const selectors = "(-id N | [-kind KIND] [-scope S [-topic T [-partition P]]] [-sink S] [-name N] [-state STATE] [-parked-reason R] [-limit N])"

// faults refuses flags that do not go together.
func (q *selection) faults() error {
	filtered := q.topic != nil || q.partition != nil || q.parkedReason != nil || q.limit != nil || q.sink != nil || q.name != nil || q.state != nil
	if err := q.faultsOfCalls(); err != nil && (q.id == nil || !filtered) {
		return err
	}
	switch {
	case q.id != nil && (q.scope != nil || filtered):
		return usagef("-id picks one row: it goes with none of -scope, -topic, -partition, -sink, -name, -state, -parked-reason and -limit")
	case q.id == nil && q.kind != nil && *q.kind == kindCall && q.scope == nil && q.sink == nil:
		return missing(given{"-id, -sink or -scope", false}, given{"-reason", q.reason != nil})
	case q.id == nil && q.scope == nil && q.sink == nil:
		return missing(given{"-id or -scope", false}, given{"-reason", q.reason != nil})
	case q.partition != nil && q.topic == nil:
		return usagef("-partition needs -topic")
	}
	return missing(given{"-reason", q.reason != nil})
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
	if q.id != nil && q.kind == nil {
		if err := q.learnKind(ctx, tx); err != nil {
			return nil, err
		}
	}
	rows, err := q.pick(ctx, tx, ids, q.states(), limit+1)
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

// pick reads the rows that are asked for. The ids narrow them down.
func (q *selection) pick(ctx context.Context, tx pgx.Tx, ids []int64, states []string, limit int64) ([]pickedRow, error) {
	return collect[pickedRow](ctx, tx, pickSQL, ids, q.scope, q.topic, q.partition, q.parkedReason, states, limit, []string{q.kindOf()}, q.sink, q.name,
		q.discard || q.applied, q.newKey && !q.notApplied)
}

// kindOf is what the command is about.
func (q *selection) kindOf() string {
	if q.kind == nil {
		return kindMessage
	}
	return *q.kind
}

// learnKind finds out what the one row is that was asked for by its id alone.
func (q *selection) learnKind(ctx context.Context, tx pgx.Tx) error {
	rows, err := collect[oneRow](ctx, tx, oneSQL, *q.id)
	if err == nil && len(rows) == 1 {
		q.kind = &rows[0].Kind
		if rows[0].Kind != kindCall && q.asserts() {
			return &refusal{fmt.Sprintf("row %d is a parked %s, and nothing was done: -verified-applied, -verified-not-applied and -new-key are for calls", *q.id, rows[0].Kind)}
		}
	}
	return err
}

// filter is what was asked for, for the audit row.
func (q *selection) filter() map[string]any {
	f := map[string]any{}
	for name, p := range map[string]*string{"scope": q.scope, "topic": q.topic, "parked_reason": q.parkedReason, "kind": q.kind, "state": q.state, "sink": q.sink, "name": q.name} {
		if p != nil {
			f[name] = *p
		}
	}
	for name, p := range map[string]*int64{"id": q.id, "partition": q.partition, "limit": q.limit} {
		if p != nil {
			f[name] = *p
		}
	}
	for name, is := range map[string]bool{"verified_applied": q.applied, "verified_not_applied": q.notApplied, "new_key": q.newKey} {
		if is {
			f[name] = true
		}
	}
	return f
}

// none says why nothing was picked.
func (q *selection) none(ctx context.Context, tx pgx.Tx) error {
	if q.id == nil {
		return &refusal{"nothing is parked that this asks for and that could be changed: `onlyonce parked list` shows what there is"}
	}
	rows, err := collect[oneRow](ctx, tx, oneSQL, *q.id)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return usagef("-id: there is no parked row %d", *q.id)
	}
	r := rows[0]
	switch {
	case r.Kind != q.kindOf():
		return usagef("-kind: row %d is a parked %s", *q.id, r.Kind)
	case r.State == "resolved" || r.State == "discarded":
		return &refusal{fmt.Sprintf("row %d is settled (%s), and nothing was done", *q.id, r.State)}
	case r.State == "blocked":
		head, err := q.head(ctx, tx)
		if err != nil {
			return err
		}
		return &refusal{fmt.Sprintf("row %d is blocked behind another of its ordering key, and nothing was done: redrive or discard that one first%s", *q.id, head)}
	}
	if r.Kind == kindCall {
		if err := q.noneOfCalls(&r); err != nil {
			return err
		}
	}
	return &refusal{fmt.Sprintf("row %d is in state %s, and nothing was done", *q.id, r.State)}
}

// head names the row that blocks the one that was asked for.
func (q *selection) head(ctx context.Context, tx pgx.Tx) (string, error) {
	rows, err := (&selection{kind: q.kind, discard: true}).pick(ctx, tx, []int64{*q.id}, []string{"blocked"}, 1)
	if err != nil || len(rows) == 0 || rows[0].Head == nil {
		return "", err
	}
	return fmt.Sprintf(": -id %d", *rows[0].Head), nil
}
