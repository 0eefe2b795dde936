package operate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// shownRows is how many rows the table of a decision shows.
const shownRows = 20

// ParkedFilter is the filter of [ParkedList].
type ParkedFilter struct {
	ops.ParkedFilter
	All           bool
	Offset        *int64
	Before, After int64 // see reports.ParkedFilter
}

// parkedFields pick parked rows, by everything but their id.
func parkedFields(f *ops.ParkedFilter) []Field {
	return []Field{
		At(&f.Kind, "kind", "KIND",
			"only rows of one KIND: message, call or event").OneOf("message", "call", "event"),
		At(&f.Scope, "scope", "S", "the scope S of the consumer"),
		At(&f.Topic, "topic", "T", "the topic T"),
		At(&f.Partition, "partition", "P", "the partition P"),
		At(&f.Sink, "sink", "S", "only calls to the sink S"),
		At(&f.Name, "name", "N", "only calls of the name N"),
		At(&f.State, "state", "STATE",
			"only rows in one STATE: waiting, retrying, blocked or reconcile; in a list also "+
				"resolved or discarded").
			OneOf("waiting", "retrying", "blocked", "reconcile", "resolved", "discarded"),
		At(
			&f.Reason,
			"parked-for",
			"R",
			"only rows that were parked for the reason R: "+strings.Join(parked.Reasons, ", "),
		).OneOf(parked.Reasons...),
		At(&f.ErrorPrefix, "error", "TEXT", "only rows whose error begins with TEXT"),
		At(&f.Limit, "limit", "N", "at most N rows, from 1 to 10000 (default 100)").Between(1, 10_000),
	}
}

// Unsettled reports whether only rows that are not settled are picked.
func (f *ParkedFilter) Unsettled() bool {
	return !f.All && f.State != "resolved" && f.State != "discarded"
}

// Filtered reports whether the filter picks less than all.
func (f *ParkedFilter) Filtered() bool {
	of := f.ParkedFilter
	of.Limit = 0
	return of != ops.ParkedFilter{} || f.Offset != nil
}

// rows is the filter as package reports has it.
func (f *ParkedFilter) rows() reports.ParkedFilter {
	return reports.ParkedFilter{
		Scope:       f.Scope,
		Kind:        f.Kind,
		State:       f.State,
		Reason:      f.Reason,
		ErrorPrefix: f.ErrorPrefix,
		Sink:        f.Sink,
		Name:        f.Name,
		Topic:       f.Topic,
		Partition:   f.Partition,
		Offset:      f.Offset,
		Unsettled:   f.Unsettled(),
		Before:      f.Before,
		After:       f.After,
		Limit:       int(f.Limit),
	}
}

// ParkedList is the list of parked rows. Its sums are an *reports.ParkedTotals.
var ParkedList = &List[ParkedFilter, ops.ParkedRow]{
	Name:    "parked list",
	Summary: "list messages, calls and events that were set aside",
	Help: `
Lists what was set aside because it could not be applied or sent, and is not settled, oldest first.
If there is more than one reason, it counts the rows by reason, with the commands for those that
wait for an operator. The last line counts all. ORIGIN is topic/partition@offset of a message, or
sink/name of an outbound call; AGE is since it was parked. Bodies and headers are not shown. It
changes nothing.

States: waiting (for an operator), retrying, blocked (behind another one of its ordering key),
reconcile (a call whose outcome is unknown); and of settled rows resolved and discarded. With -all,
or with such a -state, settled rows are listed too, and the newest come first.

Example:
  onlyonce parked list -scope stock -parked-for exhausted`,
	Columns: ParkedColumns,
	fields: func(f *ParkedFilter) []Field {
		return append(parkedFields(&f.ParkedFilter),
			Option(&f.All, "all", "settled rows too, newest first"),
			At(&f.Offset, "offset", "O", "the offset O"))
	},
	read: func(ctx context.Context, tx pgx.Tx, f ParkedFilter) ([]ops.ParkedRow, bool, error) {
		return reports.Parked[ops.ParkedRow](ctx, tx, f.rows())
	},
	page: func(f *ParkedFilter, way string, id int64) {
		if way == "after" {
			f.After = id
		} else {
			f.Before = id
		}
	},
	next: func(f *ParkedFilter, last *ops.ParkedRow) (way string, id int64) {
		if f.Unsettled() {
			return "after", last.ID
		}
		return "before", last.ID
	},
	sums: func(ctx context.Context, db ops.DB, f *ParkedFilter, limit time.Duration) (*reports.ParkedTotals, error) {
		return reports.Look(ctx, db, func(tx pgx.Tx) (*reports.ParkedTotals, error) {
			of := f.rows()
			of.Offset = nil
			return reports.CountParked(ctx, tx, of, false, limit)
		})
	},
}

// decideFields pick the rows that a decision is about.
func decideFields(in *ops.ParkedInput) []Field {
	id := At(&in.ID, "id", "N", "the row's id N, as onlyonce parked list shows it").From(1)
	all := Option(&in.All, "all", "all rows that match, up to 100000, in transactions of 500")
	return append(append([]Field{id}, parkedFields(&in.ParkedFilter)...), all)
}

func redriveFields(in *ops.ParkedInput) []Field {
	return append(decideFields(in),
		Option(&in.VerifiedApplied, "verified-applied",
			"of open calls that wait for you: you have verified that the remote has applied "+
				"them; resolve them"),
		Option(&in.VerifiedNotApplied, "verified-not-applied",
			"of open calls that wait for you: you have verified that the remote has not applied "+
				"them; send them again"),
		Option(&in.NewKey, "new-key", "send calls under new keys"),
	)
}

func shownParked(in *ops.ParkedInput) **ops.ParkedChange { return &in.Shown }

func redrive() *Decision {
	return entry[ops.ParkedInput, ops.ParkedChange]{
		Decision: Decision{
			Name:    "parked redrive",
			Summary: "retry parked messages, calls and events",
			Help: `
Retries messages that wait for an operator: one by its id, or those of a scope that the flags pick,
oldest first. They become due at once, with as many attempts as a new message has.

The consumer of that scope applies them, within two seconds if it runs, else when it starts; one
that fails again at all its attempts waits again. If a message is being retried already, it becomes
due now if -id names it. Each is applied once at most, with its position and its id as they are, so
calls that it enqueues keep their keys. Order within an ordering key is kept: a message is tried
only once the earlier ones are settled, and those that it blocks follow by themselves. So a blocked
message cannot be redriven: redrive or discard the first of its key.

Messages of reason conflict (an id that was used before for another payload) are left out unless -id
or -parked-for conflict picks them. Redriving one declares it another message than the first: its
calls get keys of their own, which derive from its position. If it is the same one, rendered anew,
discard it. Events are redriven as messages are, with -kind event or by their id. Events that a
webhook receiver has set aside (same-body, divergent, stale, forward) are appended to the
endpoint's stream, and handled as if they had come now.

Calls are picked by their id, or with -kind call by sink, name, scope, state or reason. Their relay
sends them, under the keys that they have, so a remote that honours keys applies each once:
  waiting    The last attempt was refused. It is sent again.
  retrying   It is sent now instead of when it is due.
  reconcile  It may or may not have been applied, and the remote may have forgotten the key. Ask the remote, and say
             -verified-applied (it is resolved, and not sent) or -verified-not-applied (it is sent again).
A waiting call can be open: an attempt before the refused one had no final answer, so the remote may
have applied it. It is sent again only while the remote remembers its key, and goes to reconcile
after that. If you have asked the remote, say so as above. -new-key sends rejected calls that are
not open, or those with -verified-not-applied, under a key that derives from the old one: for a
remote that answers a used key with its old rejection. To the remote that is another call. A call
that was erased cannot be redriven.

Examples:
  onlyonce parked redrive -scope stock -topic orders -parked-for exhausted -reason "table is back, INC-7"
  onlyonce parked redrive -kind call -sink payments -state waiting -reason "credentials renewed, INC-8"
  onlyonce parked redrive -id 4712 -verified-not-applied -reason "not in the bank's report of 12 May"`,
			Waits: "waiting for another transaction",
			Page:  "redrive",
			Title: "Redrive",
			Means: "The row becomes due at once, with as many attempts as a new one has. It is applied once " +
				"at most: a message under its id, a call under its key.",
		},
		fields: redriveFields,
		shown:  shownParked,
		do:     ops.Redrive,
		would:  redriveWould,
		done: func(in *ops.ParkedInput, d *ops.ParkedChange) []string {
			var s Said
			switch first := &d.Rows[0]; {
			case first.Kind != "call":
				s.say("Done: %d are due now; audit row %d. The consumer of scope %s applies them, within "+
					"two seconds if it runs.", d.Count, d.AuditID, first.Scope)
			case in.VerifiedApplied:
				s.say("Done: %d resolved as applied; audit row %d.", d.Count, d.AuditID)
			default:
				s.say("Done: %d are due now; audit row %d. The relay of sink %s sends them, within two "+
					"seconds if it runs.", d.Count, d.AuditID, show.OrDash(first.Sink))
				for _, k := range d.Keys {
					s.say("Row %d: key %s instead of %s.", k.ID, k.NewKey, k.OldKey)
				}
			}
			return s.promoted(d)
		},
	}.decision()
}

// redriveWould says what a redrive would do.
func redriveWould(in *ops.ParkedInput, d *ops.ParkedChange) Said {
	s, behind := parkedRows(d)
	switch {
	case d.Rows[0].Kind != "call":
		s.redriveMessages(d)
	case in.VerifiedApplied:
		s.say("Resolve %d, which you have verified to be applied: they are not sent again.", d.Count)
	case in.NewKey:
		s.say("Redrive %d under new keys: to the remote they are other calls, which it applies even "+
			"if it has applied the old ones.", d.Count)
	case in.VerifiedNotApplied:
		s.say("Redrive %d, which you have verified not to be applied: each is sent again, under its "+
			"key, with the whole window before it.", d.Count)
	default:
		s.say("Redrive %d: each is sent again, under its key.", d.Count)
		if n := openCalls(d); n > 0 {
			s.say("%d of them may have been applied: an attempt had no final answer. They are sent "+
				"only while the remote remembers their keys.", n)
		}
	}
	if behind > 0 {
		s.say("%d of them are blocked by others of their ordering key (BEHIND names the first), and "+
			"are tried only once those are settled.", behind)
	}
	return s.limited(d)
}

func discard() *Decision {
	return entry[ops.ParkedInput, ops.ParkedChange]{
		Decision: Decision{
			Name:    "parked discard",
			Summary: "give parked work up: it is never applied or sent",
			Help: `
Gives parked messages up: one by its id, or those of a scope that the flags pick, oldest first. They
are never applied. The rows stay, with their contents.

It waits for an attempt that is under way: what that applies is not discarded. A discarded message's
id stays claimed, so copies that come later are duplicates and are not applied either (messages of
reason conflict and no-key have claimed none). Messages that it blocks are tried next.

Messages of reason conflict are left out unless -id or -parked-for conflict picks them. Events are
discarded as messages are, with -kind event or by their id.

Calls are picked by their id, or with -kind call by sink, name, scope, state or reason. They are not
sent any more. One that was called already may have been applied all the same, and one that is under
way is not stopped.

Examples:
  onlyonce parked discard -id 4711 -reason "test order, INC-7"
  onlyonce parked discard -kind call -sink mail -name welcome -state waiting -reason "addresses are wrong, INC-8"`,
			Danger: true,
			Waits:  "waiting for an attempt at one of the rows to end",
			Page:   "discard",
			Title:  "Discard",
			Means: "The row is given up: it is never applied or sent. It stays stored, and the id of a " +
				"message stays claimed, so that copies which arrive later are duplicates.",
		},
		fields: decideFields,
		shown:  shownParked,
		do:     ops.Discard,
		would: func(_ *ops.ParkedInput, d *ops.ParkedChange) Said {
			s, _ := parkedRows(d)
			if d.Rows[0].Kind != "call" {
				s.say("Discard %d: they are never applied, and copies of them that come later are not either.", d.Count)
				return s.limited(d)
			}
			s.say("Discard %d: they are not sent.", d.Count)
			if n := openCalls(d); n > 0 {
				s.say("%d of them were called without a final answer: the remote may or may not have applied them.", n)
			}
			return s.limited(d)
		},
		done: func(_ *ops.ParkedInput, d *ops.ParkedChange) []string {
			var s Said
			s.say("Done: %d discarded; audit row %d.", d.Count, d.AuditID)
			return s.promoted(d)
		},
	}.decision()
}

// parkedRows shows the rows that a decision is about, and counts those behind others.
func parkedRows(d *ops.ParkedChange) (s Said, behind int) {
	s.Columns = []string{"ID", "STATE", "REASON", "SCOPE", "ORIGIN", "BEHIND"}
	for i := range d.Rows {
		r := &d.Rows[i]
		if r.Head != nil {
			behind++
		}
		if i < shownRows {
			s.row(r.ID, r.State, r.Reason, r.Scope, Origin(r), r.Head)
		}
	}
	if n := d.Count - len(s.Rows); n > 0 {
		s.say("and %d more", n)
	}
	return s, behind
}

// openCalls counts the calls that the remote may have applied.
func openCalls(d *ops.ParkedChange) (n int) {
	for i := range d.Rows {
		if d.Rows[i].MayBeApplied {
			n++
		}
	}
	return n
}

func (s *Said) redriveMessages(d *ops.ParkedChange) {
	s.say("Redrive %d: each is tried again as a new message is.", d.Count)
	reasons := map[string]int{}
	for i := range d.Rows {
		reasons[d.Rows[i].Reason]++
	}
	if n := reasons["no-key"]; n > 0 {
		s.say("%d of them had no key: a redrive helps only if Config.Key, or its input, has changed since.", n)
	}
	if n := reasons["too-old"]; n > 0 {
		s.say("%d of them are too old for their keys to be remembered. They are applied, whether they are "+
			"copies or not: a redrive does not check their age.", n)
	}
}

func (s Said) limited(d *ops.ParkedChange) Said {
	switch {
	case d.More && d.UpTo > 0:
		s.say("There are more: so many are changed at most.")
	case d.More:
		s.say("There are more: the limit was reached.")
	}
	return s
}

// promoted says what became of the rows that were blocked.
func (s *Said) promoted(d *ops.ParkedChange) []string {
	if d.UpTo > 0 {
		stopped := ""
		if d.Stopped {
			stopped = "; it was stopped"
		}
		s.say("%d of %d rows were changed, and %d had changed before%s.", d.Changed, d.Count, d.Skipped, stopped)
	}
	switch {
	case d.Unpromoted != nil:
		s.say("Messages that they blocked are tried only after some minutes: %v", d.Unpromoted)
	case d.Promoted > 0:
		s.say("%d that they blocked are due now.", d.Promoted)
	}
	return s.Sentences
}

func eraseParkedFields(in *ops.EraseParkedInput) []Field {
	return []Field{
		At(&in.ID, "id", "N", "the row with the id N").From(1),
		At(&in.Key, "key", "KEY", "the rows of a key, KEY, a UUID"),
		At(&in.OrderingKey, "ordering-key", "KEY", "the rows of an ordering key, or of a record key"),
	}
}

func eraseParked() *Decision {
	return entry[ops.EraseParkedInput, ops.Erased]{
		Decision: Decision{
			Name:    "parked erase",
			Summary: "erase what settled parked rows hold",
			Help: `
Erases body, headers and error of parked messages, events and calls that are settled, and a remote's
answer: for a data-erasure request. Of calls and events it also erases the body in their
log, as "onlyonce outbox erase" and "onlyonce events erase" do, which find also those that were
never parked. Headers of calls stay. Rows that are not settled must be redriven or discarded first.

The rows stay until their retention has passed, with key and position: a copy that comes later is a
duplicate as before. Backups, and standbys that lag, hold the bytes longer, and Kafka has its own
copy.

-key is a key as "onlyonce parked list -json" has it, a UUID. -ordering-key picks messages and
events by their ordering key or record key, and calls by their ordering key.

Examples:
  onlyonce parked erase -ordering-key cus_42 -reason "GDPR request 118"
  onlyonce parked erase -id 4711 -reason "a card number was in it"`,
			Danger: true,
			Waits:  "waiting for an attempt at one of the rows, or a relay, to end",
		},
		fields: eraseParkedFields,
		needs:  []string{"id", "key", "ordering-key"},
		do:     ops.EraseParked,
		would: func(_ *ops.EraseParkedInput, d *ops.Erased) (s Said) {
			tableOf(&s, StoredColumns, d.Rows, shownRows)
			s.say("Erase what they hold. It cannot be brought back; copies stay duplicates.")
			return s
		},
		done: func(_ *ops.EraseParkedInput, d *ops.Erased) []string {
			return []string{fmt.Sprintf("Done: erased; audit row %d.", d.AuditID)}
		},
	}.decision()
}

func eraseEventsFields(in *ops.EraseEventsInput) []Field {
	return []Field{
		At(&in.Topic, "topic", "T", "the stream T").needed(),
		At(&in.ID, "id", "EVENT", "the event with the id EVENT"),
		At(&in.Key, "key", "KEY", "all events of the ordering key KEY"),
	}
}

func eraseEvents() *Decision {
	return entry[ops.EraseEventsInput, ops.Erased]{
		Decision: Decision{
			Name:    "events erase",
			Summary: "erase events that were handled",
			Help: `
Erases bodies and headers of events in the log, and where they were parked: for a data-erasure
request. Every consumer that reads the stream must have handled them ("onlyonce cursor retire"
gives one up), and parked ones must be redriven or discarded. The rows stay until their segment is
emptied; a replay passes over them. Backups, and standbys that lag, hold the bytes longer.

-id is the id of one event, as "onlyonce parked show" has it: for webhooks ENDPOINT/PROVIDER/ID.
-key is an ordering key: all events that are about one thing. The stream of a webhook endpoint is
webhook.ENDPOINT.

Examples:
  onlyonce events erase -topic webhook.stripe -key cus_42 -reason "GDPR request 118"
  onlyonce events erase -topic webhook.github -id github/github/72d3162e-cc78-11e3-81ab-4c9367dc0958
      -reason "a token was pushed"`,
			Danger: true,
			Waits:  "waiting for another transaction",
		},
		fields: eraseEventsFields,
		needs:  []string{"id", "key"},
		do:     ops.EraseEvents,
		would: func(_ *ops.EraseEventsInput, d *ops.Erased) (s Said) {
			tableOf(&s, StoredColumns, d.Rows, shownRows)
			s.say("Erase bodies and headers. They cannot be brought back, and the events cannot be replayed.")
			return s
		},
		done: func(_ *ops.EraseEventsInput, d *ops.Erased) []string {
			return []string{fmt.Sprintf("Done: erased; audit row %d.", d.AuditID)}
		},
	}.decision()
}
