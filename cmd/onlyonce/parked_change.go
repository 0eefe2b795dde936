package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"strings"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

const (
	kindMessage = "message"
	kindCall    = "call"
	kindEvent   = "event"
)

// selection holds the operator's flags that pick parked rows.
type selection struct {
	consent
	cursorFilter
	id           *int64
	kind, state  *string
	sink, name   *string // of calls
	parkedReason *string
	errorPrefix  *string
	limit        *int64
	discard      bool

	applied, notApplied, newKey bool // what is known of calls, and what is to be done with them
}

const selectors = "(-id N | [-kind KIND] [-scope S [-topic T [-partition P]]] [-sink S] [-name N] [-state STATE] [-parked-for R] [-error TEXT] [-limit N])"

// faults refuses flags that do not go together.
func (q *selection) faults() error {
	err := (&ops.RedriveInput{ParkedFilter: q.filter(), VerifiedApplied: q.applied, VerifiedNotApplied: q.notApplied, NewKey: q.newKey}).Check()
	if err != nil {
		if flags, is := strings.CutPrefix(err.Error(), "missing: "); is {
			return missing(given{flags, false}, given{"-reason", q.reason != nil})
		}
		return decided(err)
	}
	return missing(given{"-reason", q.reason != nil})
}

func (q *selection) filter() ops.ParkedFilter {
	f := ops.ParkedFilter{ID: given0(q.id), Kind: given0(q.kind), Scope: given0(q.scope), Topic: given0(q.topic), Sink: given0(q.sink), Name: given0(q.name),
		State: given0(q.state), Reason: given0(q.parkedReason), ErrorPrefix: given0(q.errorPrefix), Limit: given0(q.limit)}
	if q.partition != nil {
		n := int32(*q.partition)
		f.Partition = &n
	}
	return f
}

// given0 returns a flag's value, or the zero value if it is not given.
func given0[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// act redrives or discards.
func (q *selection) act(ctx context.Context, db *database, by ops.By, shown *ops.ParkedChange) (*ops.ParkedChange, error) {
	if q.discard {
		return ops.Discard(ctx, db, by, ops.DiscardInput{ParkedFilter: q.filter(), Shown: shown})
	}
	return ops.Redrive(ctx, db, by, ops.RedriveInput{ParkedFilter: q.filter(), VerifiedApplied: q.applied, VerifiedNotApplied: q.notApplied, NewKey: q.newKey, Shown: shown})
}

func parkedRedriveCommand() command {
	return command{
		name:    "parked redrive",
		args:    "[-postgres URL] " + selectors + " [-verified-applied | -verified-not-applied] [-new-key] -reason WHY [-yes]",
		summary: "retry parked messages, calls and events",
		help: `
Has messages that wait for an operator tried again: one by its id, or those of a scope that the flags pick, oldest first. They
become due at once, with as many attempts as a new message has. It shows them and asks first, unless -yes is given, and writes an
audit row.

It is the consumer of that scope which applies them, within a second or two if it runs, else when it starts; one that fails
again at all its attempts waits again. A message that is being tried again already, and is named by -id, becomes due now. Each is applied once at most, with its position and its id as they are, so calls that it
enqueues keep their keys. Order within an ordering key is kept: a message is not tried before those in front of it are
settled, and those that are blocked behind it follow by themselves. So what is blocked cannot be redriven: redrive or discard
the first of its key.

Messages of reason conflict (an id that was used before for another payload) are left out unless -id or -parked-for conflict
picks them. To redrive one says that it is another message than the first: its calls get keys of their own, which derive from
its position. If it is the same one, rendered anew, discard it. Events are redriven as messages are, with -kind event or by their id. What a webhook receiver has set aside (same-body, divergent, stale, forward)
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
  onlyonce parked redrive -scope stock -topic orders -parked-for exhausted -reason "table is back, INC-7"
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
		summary: "give parked work up: it is never applied or sent",
		help: `
Gives parked messages up: one by its id, or those of a scope that the flags pick, oldest first. They are never applied. It shows them
and asks first, unless -yes is given, and writes an audit row. The rows stay, with all that is in them.

An attempt that is under way is waited for: what it applies is not discarded. A discarded message's id stays claimed, so copies that
come later are duplicates and are not applied either (messages of reason conflict and no-key have claimed none). Messages that are blocked behind
it in their ordering key are tried next.

Messages of reason conflict are left out unless -id or -parked-for conflict picks them. Events are discarded as messages are, with -kind event or by their id.

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
	choiceVar(fs, &ask.parkedReason, "parked-for", "only rows that were parked for the reason `R`: "+strings.Join(ops.ParkedReasons(), ", "), ops.ParkedReasons()...)
	textVar(fs, &ask.errorPrefix, "error", "only rows whose error begins with `TEXT`")
	if !ask.discard {
		fs.BoolVar(&ask.applied, "verified-applied", false, "of calls in state reconcile: somebody has verified that the remote has applied them; resolve them")
		fs.BoolVar(&ask.notApplied, "verified-not-applied", false, "of calls in state reconcile: somebody has verified that the remote has not applied them; send them again")
		fs.BoolVar(&ask.newKey, "new-key", false, "send calls under new keys")
	}
	numberVar(fs, &ask.limit, "limit", fmt.Sprintf("at most `N` rows, from 1 to %d (default %d)", ops.MostLimit, ops.DefaultLimit), 1, ops.MostLimit)
	ask.consent.flags(fs)
	return func(ctx context.Context, a *app) error { return a.settleParked(ctx, *address, ask) }
}

func (a *app) settleParked(ctx context.Context, address string, ask *selection) error {
	if err := ask.faults(); err != nil {
		return err
	}
	waiting := "waiting for another transaction"
	if ask.discard {
		waiting = "waiting for an attempt at one of the rows to end"
	}
	return decide(ctx, a, address, ask.consent, waiting, decision[ops.ParkedChange]{act: ask.act, write: ask.write, after: func(_ context.Context, db *database, done *ops.ParkedChange) error {
		switch first := &done.Rows[0]; {
		case !ask.discard && first.Kind == kindCall:
			ask.redriven(a, done)
		case !ask.discard:
			_, _ = fmt.Fprintf(a.out, "Done: %d are due now; audit row %d. The consumer of scope %s applies them, within a second or two if it runs.\n",
				done.Count, done.AuditID, cell(first.Scope))
		default:
			_, _ = fmt.Fprintf(a.out, "Done: %d discarded; audit row %d.\n", done.Count, done.AuditID)
		}
		switch {
		case done.Unpromoted != nil:
			a.complain("what was blocked behind them is tried only after some minutes: %v", db.explain(done.Unpromoted))
		case done.Promoted > 0:
			_, _ = fmt.Fprintf(a.out, "%d that were blocked behind them are due now.\n", done.Promoted)
		}
		return nil
	}})
}

func (q *selection) write(a *app, d *ops.ParkedChange) {
	const most = 20
	var cells [][]string
	behind := 0
	for i, r := range d.Rows {
		if r.Head != nil {
			behind++
		}
		if i >= most {
			continue
		}
		p := ops.ParkedItem{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Sink: r.Sink, Name: r.Name}
		cells = append(cells, []string{number(r.ID), r.State, r.Reason, r.Scope, originOf(&p), numberOrDash(r.Head)})
	}
	a.table([]string{"ID", "STATE", "REASON", "SCOPE", "ORIGIN", "BEHIND"}, cells)
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	if n := len(d.Rows) - most; n > 0 {
		say("and %d more", n)
	}
	switch {
	case d.Rows[0].Kind == kindCall:
		q.writeCalls(a, d)
	case q.discard:
		say("Discard %d: they are never applied, and copies of them that come later are not either.", d.Count)
	default:
		say("Redrive %d: each is tried again as a new message is.", d.Count)
		of := func(reason string) (n int) {
			for _, r := range d.Rows {
				if r.Reason == reason {
					n++
				}
			}
			return n
		}
		if n := of("no-key"); n > 0 {
			say("%d of them had no key: that helps only if Config.Key, or where it looks, has changed since.", n)
		}
		if n := of("too-old"); n > 0 {
			say("%d of them are too old for their keys to be remembered. They are applied, whether they are copies or not: a redrive does not look at their age.", n)
		}
	}
	if behind > 0 && !q.discard {
		say("%d of them stand behind others of their ordering key (BEHIND names the first), and are tried only once those are settled.", behind)
	}
	if d.More {
		say("There are more: the limit was reached.")
	}
}

// redriven prints the result of a redrive of calls.
func (q *selection) redriven(a *app, done *ops.ParkedChange) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	if q.applied {
		say("Done: %d resolved as applied; audit row %d.", done.Count, done.AuditID)
		return
	}
	say("Done: %d are due now; audit row %d. The relay of sink %s sends them, within a second or two if it runs.", done.Count, done.AuditID, cell(show.OrDash(done.Rows[0].Sink)))
	for _, k := range done.Keys {
		say("Row %d: key %s instead of %s.", k.ID, k.NewKey, k.OldKey)
	}
}

// writeCalls shows what would be done with calls.
func (q *selection) writeCalls(a *app, d *ops.ParkedChange) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	unknown := 0
	for _, r := range d.Rows {
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
