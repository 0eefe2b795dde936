package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/codec"
)

// redriveCallsSQL makes parked calls due. In: ids, the key that each goes out under from now on (null: its own), and whether somebody has
// verified that they were not applied. Under the lock on the rows.
//
// The key's window counts anew only where the remote cannot have applied the call: it has rejected it for certain, or somebody has verified
// it. Otherwise a call may still be under way, or applied, and the remote must remember its key.
//
// A sealed body opens under no other key than the one that it was sealed under, so that one is kept (O13).
//
// Attempts of a row that is being retried stay: its relay, which may be calling at this moment, settles by them.
const redriveCallsSQL = `
update onlyonce.parked p
   set state = 'retrying', next_attempt_at = clock_timestamp(), attempts = case when p.state = 'retrying' then p.attempts else 0 end,
       first_attempt_at = case when $3::boolean or p.state = 'waiting' and p.reason = 'rejected' then null else p.first_attempt_at end,
       key = coalesce(u.key, p.key),
       sealed_as = case when p.sealed and u.key is not null then coalesce(p.sealed_as, p.key) else p.sealed_as end
  from unnest($1::bigint[], $2::uuid[]) as u(id, key)
 where p.id = u.id and p.kind = 'call' and p.erased_at is null
   and (p.state in ('waiting', 'retrying') and not $3::boolean or p.state = 'reconcile' and $3::boolean)`

// resolveCallsSQL settles parked calls that were applied, as somebody has verified. In: ids. Under the lock on the rows.
const resolveCallsSQL = `
update onlyonce.parked set state = 'resolved', settled_at = clock_timestamp(), next_attempt_at = null
 where id = any ($1::bigint[]) and kind = 'call' and state = 'reconcile'`

// redrivesSQL counts how often parked rows were redriven. In: ids. One row for each of them. Reads onlyonce.audit, which has a row for
// each change that an operator made.
const redrivesSQL = `
select i.id, (select count(*) from onlyonce.audit a where a.action = 'parked redrive' and a.detail->'ids' @> to_jsonb(i.id)) as redrives
  from unnest($1::bigint[]) as i(id)`

// newKey is the key of a call that a remote, for which its own key is used up, is to take for another one. It derives from the old key
// and from how often the row was redriven before, so that doing it again (after a restore that lost it) makes the same key. A
// UUIDv8, as the keys of calls are.
func newKey(old string, redrives int64) string {
	sum := codec.Hash("onlyonce/redrive/1", old, "redrive", number(redrives))
	return codec.UUIDv8([16]byte(sum[:16])).String()
}

// changedKey is a call that goes out under another key, for the audit row.
type changedKey struct {
	ID     int64  `json:"id"`
	OldKey string `json:"old_key"`
	NewKey string `json:"new_key"`
}

// faultsOfCalls refuses flags that do not go together, and those that are for calls only.
func (q *selection) faultsOfCalls() error {
	calls := q.kind != nil && *q.kind == kindCall
	messages := q.kind != nil && *q.kind != kindCall
	switch {
	case !calls && (q.sink != nil || q.name != nil || q.state != nil):
		return usagef("-sink, -name and -state pick calls: add -kind call")
	case messages && q.asserts(), q.id == nil && !calls && q.asserts():
		return usagef("-verified-applied, -verified-not-applied and -new-key are for calls: add -kind call")
	case calls && (q.topic != nil || q.partition != nil):
		return usagef("-topic and -partition pick messages and events, and do not go with -kind call")
	case q.applied && (q.notApplied || q.newKey):
		return usagef("-verified-applied goes with neither -verified-not-applied nor -new-key: what was applied is not sent again")
	}
	return nil
}

// asserts reports whether the operator says what is for calls only.
func (q *selection) asserts() bool { return q.applied || q.notApplied || q.newKey }

// states are those of the rows that can be picked.
func (q *selection) states() []string {
	all := []string{"waiting"}
	switch calls := q.kindOf() == kindCall; {
	case q.discard && calls:
		all = []string{"waiting", "blocked", "retrying", "reconcile"}
	case q.discard:
		all = []string{"waiting", "blocked", "retrying"}
	case calls && (q.applied || q.notApplied):
		all = []string{"reconcile"}
	case calls && !q.newKey, !calls && q.id != nil: // a message that is being tried again is made due now when it is named
		all = []string{"waiting", "retrying"}
	}
	if q.state == nil {
		return all
	}
	for _, s := range all {
		if s == *q.state {
			return []string{s}
		}
	}
	return []string{}
}

// redriveCalls has calls sent again, or resolves them. It returns how many.
func (q *selection) redriveCalls(ctx context.Context, tx pgx.Tx, now *selected) (changed int64, err error) {
	if q.applied {
		tag, err := tx.Exec(ctx, resolveCallsSQL, now.IDs)
		return tag.RowsAffected(), err
	}
	keys := make([]*string, len(now.rows))
	if q.newKey {
		type counted struct{ ID, Redrives int64 }
		counts, err := collect[counted](ctx, tx, redrivesSQL, now.IDs)
		if err != nil {
			return 0, err
		}
		before := map[int64]int64{}
		for _, c := range counts {
			before[c.ID] = c.Redrives
		}
		for i, r := range now.rows {
			k := newKey(*r.Key, before[r.ID])
			keys[i] = &k
			now.Keys = append(now.Keys, changedKey{r.ID, *r.Key, k})
		}
	}
	tag, err := tx.Exec(ctx, redriveCallsSQL, now.IDs, keys, q.notApplied)
	return tag.RowsAffected(), err
}

// noneOfCalls says why a call cannot be redriven or discarded as it was asked for.
func (q *selection) noneOfCalls(r *oneRow) error {
	id := *q.id
	no := func(format string, args ...any) error {
		return &refusal{fmt.Sprintf("call %d ", id) + fmt.Sprintf(format, args...)}
	}
	switch {
	case r.Key == nil:
		return no("has no key, and nothing was done: no relay could send it")
	case r.Erased:
		return no("was erased, and nothing was done: there is no body to send")
	case r.State == "reconcile" && !q.asserts():
		return no("may have been applied, and nothing was done: the remote may have forgotten its key. Ask the remote, and say -verified-applied or -verified-not-applied")
	case r.State == "reconcile" && q.newKey:
		return no("may have been applied, and nothing was done: -new-key needs -verified-not-applied too")
	case q.newKey && !q.notApplied:
		return no("was not rejected (state %s, reason %s), and nothing was done: a new key needs the remote's rejection, or -verified-not-applied in state reconcile", r.State, r.Reason)
	case (q.applied || q.notApplied) && (r.State == "waiting" || r.State == "retrying"):
		return no("is in state %s, and nothing was done: -verified-applied and -verified-not-applied are for state reconcile", r.State)
	}
	return nil
}

// redriven says what came of a redrive of calls.
func (q *selection) redriven(a *app, done *selected, audit int64) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	if q.applied {
		say("Done: %d resolved as applied; audit row %d.", done.Count, audit)
		return
	}
	say("Done: %d are due now; audit row %d. The relay of sink %s sends them, within a second or two if it runs.", done.Count, audit, cell(orDash(done.rows[0].Sink)))
	for _, k := range done.Keys {
		say("Row %d: key %s instead of %s.", k.ID, k.NewKey, k.OldKey)
	}
}

// writeCalls shows what would be done with calls.
func (q *selection) writeCalls(a *app, d *selected) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	unknown := 0
	for _, r := range d.rows {
		if r.State == "reconcile" || r.State == "retrying" && r.Attempted {
			unknown++
		}
	}
	switch {
	case q.discard:
		say("Discard %d: they are not sent.", d.Count)
		if unknown > 0 {
			say("%d of them were called without a final answer: nobody knows whether the remote has applied them.", unknown)
		}
	case q.applied:
		say("Resolve %d, which you have verified to be applied: they are not sent again.", d.Count)
	case q.newKey:
		say("Redrive %d under new keys: to the remote they are other calls, which it applies even if it has applied the old ones.", d.Count)
	case q.notApplied:
		say("Redrive %d, which you have verified not to be applied: each is sent again, under its key, with the whole window before it.", d.Count)
	default:
		say("Redrive %d: each is sent again, under its key.", d.Count)
	}
}
