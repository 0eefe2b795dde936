package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// lockPickedSQL locks parked rows. In: ids. It waits for an attempt at one of them that is under way, which holds the row from its first
// statement on: what became of it shows only to a statement after this one. In the order of ids, as every command does.
const lockPickedSQL = `select id from onlyonce.parked where id = any ($1::bigint[]) order by id for update`

// redriveSQL makes parked messages and events due, with all attempts before them; one that is being retried keeps its attempts, by which its
// consumer settles it. In: ids. Under the lock on the rows.
const redriveSQL = `
update onlyonce.parked set state = 'retrying', next_attempt_at = clock_timestamp(), attempts = case when state = 'retrying' then attempts else 0 end
 where id = any ($1::bigint[]) and kind in ('message', 'event') and state in ('waiting', 'retrying') and (kind = 'message' or "offset" is not null)`

// appendParkedSQL appends events to their streams that a receiver has set aside before they were; see the function's comment in the migration.
const appendParkedSQL = `select onlyonce.append_parked($1)`

// discardSQL settles parked messages and events without applying them, and calls without sending them. In: ids. Under the lock on the rows.
const discardSQL = `
update onlyonce.parked set state = 'discarded', settled_at = clock_timestamp(), next_attempt_at = null
 where id = any ($1::bigint[]) and (state in ('waiting', 'blocked', 'retrying') or kind = 'call' and state = 'reconcile')`

// claimGivenUpSQL claims the keys of messages that are given up, and of events that their receiver had set aside: what was parked for longer than a horizon is
// remembered no more, and a copy would be applied (K7). (A worker's key of an event is not its receiver's.) In: ids, settled by now. One row: nothing that counts. Of the two rings, the log's first, as everywhere.
const claimGivenUpSQL = `
with given_up as (
  select p.kind, p.key from onlyonce.parked p
   where p.id = any ($1::bigint[]) and p.kind in ('message', 'event') and p.key is not null and p.reason not in ('conflict', 'no-key')
     and (p.kind = 'message' or p."offset" is null))
select onlyonce.claim_consumer(array(select key from given_up where kind = 'message'), array(select 0::bigint from given_up where kind = 'message')),
       onlyonce.claim_standard(array(select key from given_up where kind = 'event'), array(select 0::bigint from given_up where kind = 'event'))`

// promoteSQL makes the first row of an ordering key due; see the function's comment in the migration. In: ordering key.
const promoteSQL = `select onlyonce.promote($1::uuid)`

func parkedRedriveCommand() command {
	return command{
		name:    "parked redrive",
		args:    "[-postgres URL] " + selectors + " [-verified-applied | -verified-not-applied] [-new-key] -reason WHY [-yes]",
		summary: "have parked messages and calls tried again",
		help: `
Has messages that wait for an operator tried again: one by its id, or those of a scope that the flags pick, oldest first. They
become due at once, with as many attempts as a new message has. It shows them and asks first, unless -yes is given, and writes an
audit row.

It is the consumer of that scope which applies them, within a second or two if it runs, else when it starts; one that fails
again at all its attempts waits again. A message that is being tried again already, and is named by -id, becomes due now. Each is applied once at most, with its position and its id as they are, so calls that it
enqueues keep their keys. Order within an ordering key is kept: a message is not tried before those in front of it are
settled, and those that are blocked behind it follow by themselves. So what is blocked cannot be redriven: redrive or discard
the first of its key.

Messages of reason conflict (an id that was used before for another payload) are left out unless -id or -parked-reason conflict
picks them. To redrive one says that it is another message than the first: its calls get keys of their own, which derive from
its position. If it is the same one, rendered anew, discard it. Events are redriven as messages are, with -kind event or by their id. What a webhook receiver has set aside (same-body, stale, forward)
is appended to the endpoint's stream, and handled as if it had come now.

Calls are picked by their id, or with -kind call by sink, name, scope, state or reason. Their relay sends them, under the keys that
they have, so a remote that honours keys applies each once:
  waiting    The remote has rejected it. It is sent again, and its key counts as unused.
  retrying   It is sent now instead of when it is due.
  reconcile  Nobody knows whether it was applied, and the remote may have forgotten the key. Ask the remote, and say
             -verified-applied (it is resolved, and not sent) or -verified-not-applied (it is sent again).
-new-key sends rejected calls, or those with -verified-not-applied, under a key that derives from the old one: for a remote that
answers a used key with its old rejection. To the remote that is another call. What was erased cannot be redriven.

Examples:
  onlyonce parked redrive -scope stock -topic orders -parked-reason exhausted -reason "table is back, INC-7"
  onlyonce parked redrive -kind call -sink payments -state waiting -reason "credentials renewed, INC-8"
  onlyonce parked redrive -id 4712 -verified-not-applied -reason "not in the bank's report of 12 May"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			return selectionFlags(fs, &selection{})
		},
	}
}

func parkedDiscardCommand() command {
	return command{
		name:    "parked discard",
		args:    "[-postgres URL] " + selectors + " -reason WHY [-yes]",
		summary: "give parked messages and calls up: they are never applied or sent",
		help: `
Gives parked messages up: one by its id, or those of a scope that the flags pick, oldest first. They are never applied. It shows them
and asks first, unless -yes is given, and writes an audit row. The rows stay, with all that is in them.

An attempt that is under way is waited for: what it applies is not discarded. A discarded message's id stays claimed, so copies that
come later are duplicates and are not applied either (messages of reason conflict and no-key have claimed none). Messages that are blocked behind
it in their ordering key are tried next.

Messages of reason conflict are left out unless -id or -parked-reason conflict picks them. Events are discarded as messages are, with -kind event or by their id.

Calls are picked by their id, or with -kind call by sink, name, scope, state or reason. They are not sent any more. One that
was called already may have been applied all the same, and one that is under way is not stopped.

Examples:
  onlyonce parked discard -id 4711 -reason "test order, INC-7"
  onlyonce parked discard -kind call -sink mail -name welcome -state waiting -reason "addresses are wrong, INC-8"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			return selectionFlags(fs, &selection{discard: true})
		},
	}
}

func selectionFlags(fs *flag.FlagSet, ask *selection) func(context.Context, *app) error {
	address := postgresVar(fs)
	numberVar(fs, &ask.id, "id", "the row's id `N`, as `onlyonce parked list` shows it", 1, math.MaxInt64)
	ask.cursorFilter.flags(fs)
	choiceVar(fs, &ask.kind, "kind", "rows of one `KIND`: message, call or event (default: message; with -id whatever it is)", kindMessage, kindCall, kindEvent)
	textVar(fs, &ask.sink, "sink", "only calls to the sink `S`")
	textVar(fs, &ask.name, "name", "only calls of the name `N`")
	choiceVar(fs, &ask.state, "state", "only calls in one `STATE`: waiting, retrying, blocked or reconcile", "waiting", "retrying", "blocked", "reconcile")
	choiceVar(fs, &ask.parkedReason, "parked-reason", "only rows that were parked for the reason `R`: "+strings.Join(parkedReasons, ", "), parkedReasons...)
	if !ask.discard {
		fs.BoolVar(&ask.applied, "verified-applied", false, "of calls in state reconcile: somebody has verified that the remote has applied them; resolve them")
		fs.BoolVar(&ask.notApplied, "verified-not-applied", false, "of calls in state reconcile: somebody has verified that the remote has not applied them; send them again")
		fs.BoolVar(&ask.newKey, "new-key", false, "send calls under new keys")
	}
	numberVar(fs, &ask.limit, "limit", fmt.Sprintf("at most `N` rows, from 1 to %d (default %d)", mostLimit, defaultLimit), 1, mostLimit)
	ask.consent.flags(fs)
	return func(ctx context.Context, a *app) error { return a.settleParked(ctx, *address, ask) }
}

func (a *app) settleParked(ctx context.Context, address string, ask *selection) error {
	if err := ask.faults(); err != nil {
		return err
	}
	k := changeKind{action: "parked redrive", subject: "one of the rows", waiting: "waiting for another transaction", look: "onlyonce parked list"}
	if ask.discard {
		k.action, k.waiting = "parked discard", "waiting for an attempt at one of the rows to end"
	}
	return change(ctx, a, address, k, ask.consent, ask, func(ctx context.Context, db *database, done *selected, audit int64) error {
		switch {
		case !ask.discard && done.rows[0].Kind == kindCall:
			ask.redriven(a, done, audit)
			if !ask.applied {
				return nil
			}
		case !ask.discard:
			_, _ = fmt.Fprintf(a.out, "Done: %d are due now; audit row %d. The consumer of scope %s applies them, within a second or two if it runs.\n",
				done.Count, audit, cell(done.rows[0].Scope))
			return nil
		default:
			_, _ = fmt.Fprintf(a.out, "Done: %d discarded; audit row %d.\n", done.Count, audit)
		}
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

// differs: more may have been parked meanwhile, which was not picked. What was shown must still be there.
func (q *selection) differs(shown, now *selected) bool { return !slices.Equal(shown.IDs, now.IDs) }

func (q *selection) do(ctx context.Context, tx pgx.Tx, now *selected) (*selected, error) {
	var changed int64
	var err error
	if !q.discard && q.kindOf() == kindCall {
		changed, err = q.redriveCalls(ctx, tx, now)
	} else {
		sql := redriveSQL
		if q.discard {
			sql = discardSQL
		}
		var tag pgconn.CommandTag
		tag, err = tx.Exec(ctx, sql, now.IDs)
		changed = tag.RowsAffected()
		if err == nil && q.discard {
			_, err = tx.Exec(ctx, claimGivenUpSQL, now.IDs)
		}
		if err == nil && !q.discard && q.kindOf() == kindEvent {
			var appended int64
			err = tx.QueryRow(ctx, appendParkedSQL, now.IDs).Scan(&appended)
			changed += appended
		}
	}
	if err == nil && changed != int64(now.Count) {
		err = fmt.Errorf("%d of %d locked rows were changed", changed, now.Count)
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
		p := parkedRow{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Sink: r.Sink, Name: r.Name}
		cells = append(cells, []string{number(r.ID), r.State, r.Reason, r.Scope, p.origin(), numberOrDash(r.Head)})
	}
	writeTable(a.out, []string{"ID", "STATE", "REASON", "SCOPE", "ORIGIN", "BEHIND"}, cells)
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	if n := len(d.rows) - most; n > 0 {
		say("and %d more", n)
	}
	switch {
	case q.kindOf() == kindCall:
		q.writeCalls(a, d)
	case q.discard:
		say("Discard %d: they are never applied, and copies of them that come later are not either.", d.Count)
	default:
		say("Redrive %d: each is tried again as a new message is.", d.Count)
		if n := len(slices.DeleteFunc(slices.Clone(d.rows), func(r pickedRow) bool { return r.Reason != "no-key" })); n > 0 {
			say("%d of them had no key: that helps only if Config.Key, or where it looks, has changed since.", n)
		}
	}
	if behind > 0 && !q.discard {
		say("%d of them stand behind others of their ordering key (BEHIND names the first), and are tried only once those are settled.", behind)
	}
	if q.limited {
		say("There are more: the limit was reached.")
	}
}
