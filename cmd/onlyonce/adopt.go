package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"strconv"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// adoption holds the operator's flags.
type adoption struct {
	cursorFilter
	consent
	group  *string
	stop   bool // with group: the old group is stopped
	at     *string
	offset *int64 // that at names; nil: it is a word
	halt   *string
	from   *string
	late   bool // with from

	standard bool // with from: bring the keys of standard_keys too

	origin *database // with -from
}

func cursorAdoptCommand() command {
	return command{
		name:    "cursor adopt",
		args:    "[-postgres URL] -scope S -topic T [-partition N | -halted REASON] [-group G [-old-group-stopped]] [-at OFFSET | -from URL [-standard-keys] [-late]] -reason WHY [-yes | -dry-run]",
		summary: "resolve a halt: set a position, a group, or move it here",
		help: `
Resolves a halt, in one transaction: the owner of the cursor is fenced out, the cursor is changed, and an audit row
says who did it and why. It shows what was and what will be, and asks first, unless -yes is given. A consumer that is
halted looks again every few seconds and goes on by itself.

Two services with one scope are a mistake: change Config.Scope of one of them. If a group was renamed, stop the old one, and then give -group; a cursor that the
old group has not let go is not handed over, unless -old-group-stopped says that its processes died.

Without -at only the group changes (halt "foreign-group"): the next owner stamps its own, or the one that -group
names. The position stays, and so does everything that proves that the log is the same. With -group and without -partition all partitions of the topic that are
in use are handed over, in one transaction.

With -halted and without -partition all partitions of the topic that are halted for REASON are adopted, in one transaction. There -at
can also be "position", where each of them is, or "last", the end of its log when its owner last reported it.

With -at the position is set (halts "new-topic", "foreign-cluster", "truncated", "gap", "history-lost"): OFFSET is
the next that will be handled, in whichever topic of that name the next owner finds, and attempts begin anew. Offsets
between the old position and a higher OFFSET are never handled. With a lower one they are handled again: messages
with a key that is still kept are found to be duplicates, others are applied twice: "onlyonce replay" is the command that
handles messages again. Where there is no cursor -at makes one. It brings a retired cursor back, and it ends a replay.

With -from a partition moves here from another database (a shard; docs/scaling.md has the whole procedure). Its cursor
there must be retired, for less than keys are remembered there (else -late says that no copies can come any more), with nothing
parked that is not settled, and not paused. Position, group, cluster and topic are taken from it, and every key of consumer_keys that is
kept there is claimed here too, so that copies of what was applied there are found; all in one transaction. It can take as long as
the keys need (a million in seconds, or in a minute where the server is busy). -standard-keys brings those of standard_keys too, for
handlers that claim keys themselves (dedupe.Claim): only where such ids mean the same in both databases, because an order 17 of
each would be taken for one. The login needs the rights of a consumer here besides those of an operator.

If the last owner's group still runs, it may be the next one to come: stop it first, or give -group.

Example:
  onlyonce cursor adopt -scope stock -topic orders -partition 0 -at 1200 -reason "retention took 1100 to 1199, INC-7"
  onlyonce cursor adopt -scope stock -topic orders -halted new-topic -at 0 -reason "topic made anew, INC-8"
  onlyonce cursor adopt -postgres "$SHARD_B" -from "$SHARD_A" -scope stock -topic orders -partition 3 -reason "OPS-40"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			var ask adoption
			ask.cursorFilter.flags(fs)
			textVar(fs, &ask.group, "group", "the Kafka group `G` that is to own the cursor (default: the next one to come)")
			fs.BoolVar(&ask.stop, "old-group-stopped", false, "with -group: although the old group has not let the cursor go, because its processes died")
			fs.Func("at", "the `OFFSET` that is to be handled next; with -halted also position or last (default: the position stays)", ask.setAt)
			textVar(fs, &ask.halt, "halted", "all partitions of the topic that are halted for `REASON`")
			textVar(fs, &ask.from, "from", "the database that the partition moves here from, as a `URL`; its cursor there is retired")
			fs.BoolVar(&ask.standard, "standard-keys", false, "with -from: bring the keys of standard_keys too")
			fs.BoolVar(&ask.late, "late", false, "with -from: although keys of what was handled there may be forgotten by now")
			ask.consent.flags(fs)
			return func(ctx context.Context, a *app) error { return a.adopt(ctx, *address, &ask) }
		},
	}
}

// setAt reads -at.
func (q *adoption) setAt(text string) error {
	q.at, q.offset = &text, nil
	if text == "position" || text == "last" {
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n == math.MaxInt64 {
		return fmt.Errorf("must be a whole number from 0 to %d; with -halted also position or last", int64(math.MaxInt64-1))
	}
	q.offset = &n
	return nil
}

func (a *app) adopt(ctx context.Context, address string, ask *adoption) error {
	if ask.partition == nil && (ask.group != nil || ask.halt != nil) {
		return a.adoptTopic(ctx, address, ask)
	}
	if err := ask.whole(&ask.consent); err != nil {
		return err
	}
	if ask.halt != nil {
		return usagef("-halted and -partition: give one of the two")
	}
	if ask.at != nil && ask.offset == nil {
		return usagef("-at %s: only with -halted", *ask.at)
	}
	if ask.from != nil {
		if ask.at != nil {
			return usagef("-from and -at: the position is the other database's: give one of the two")
		}
		return a.withSchema(ctx, *ask.from, func(db *database) error {
			ask.origin = db
			return a.adoptAs(ctx, address, "bringing over the keys that are kept there", ask)
		})
	}
	if ask.standard || ask.late {
		return usagef("-standard-keys and -late: only with -from")
	}
	return a.adoptAs(ctx, address, "waiting for the owner's batch to end", ask)
}

func (a *app) adoptAs(ctx context.Context, address, waiting string, ask *adoption) error {
	return decide(ctx, a, address, ask.consent, waiting, decision[ops.Adopted]{act: ask.act, write: writeAdopted, after: func(_ context.Context, _ *database, done *ops.Adopted) error {
		_, _ = fmt.Fprintf(a.out, "Done: the next offset is %d; audit row %d. A halted consumer looks again within seconds.\n",
			done.After.Position, done.AuditID)
		return nil
	}})
}

// adoptTopic adopts partitions of a topic together.
func (a *app) adoptTopic(ctx context.Context, address string, ask *adoption) error {
	if ask.from != nil || ask.standard || ask.late {
		return usagef("missing: -partition: one partition at a time moves here from another database")
	}
	if ask.at != nil && ask.halt == nil {
		return usagef("missing: -partition, or -halted: without them only the group changes, of all partitions of the topic")
	}
	if err := missing(given{"-scope", ask.scope != nil}, given{"-topic", ask.topic != nil}, given{"-reason", ask.reason != nil}); err != nil {
		return err
	}
	in := ops.AdoptTopicInput{Scope: *ask.scope, Topic: *ask.topic, Group: given0(ask.group), Halted: given0(ask.halt), At: given0(ask.at), OldGroupStopped: ask.stop}
	return decide(ctx, a, address, ask.consent, "waiting for the owners' batches to end", decision[ops.AdoptedTopic]{
		act: func(ctx context.Context, db *database, by ops.By, shown *ops.AdoptedTopic) (*ops.AdoptedTopic, error) {
			in.Shown = shown
			return ops.AdoptTopic(ctx, db, by, in)
		},
		write: writeAdoptedTopic,
		after: func(_ context.Context, _ *database, done *ops.AdoptedTopic) error {
			a.say("Done: %s adopted; audit row %d. Halted consumers look again within seconds.", show.Count(int64(len(done.Partitions)), "partition"), done.AuditID)
			return nil
		},
	})
}

func (q *adoption) act(ctx context.Context, db *database, by ops.By, shown *ops.Adopted) (*ops.Adopted, error) {
	in := ops.AdoptInput{CursorName: q.place(), Group: given0(q.group), OldGroupStopped: q.stop, At: q.offset, Shown: shown}
	if q.origin != nil {
		in.From = &ops.Origin{DB: q.origin, Name: q.origin.name, StandardKeys: q.standard, Late: q.late}
	}
	done, err := ops.AdoptCursor(ctx, db, by, in)
	return done, q.origin.explainOrigin(err)
}
