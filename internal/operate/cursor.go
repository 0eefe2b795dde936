package operate

import (
	"context"
	"fmt"
	"strconv"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

func pauseCursor() *Decision {
	return entry[ops.CursorName, ops.Paused]{
		Decision: Decision{
			Name:    "cursor pause",
			Summary: "pause a partition, a whole topic, or a whole scope",
			Help: `
Pauses a partition, without -partition the whole topic, or with -scope alone the whole scope, until
it is resumed, also across restarts. The owner finishes its current batch within two seconds and
keeps the partition. Nothing is lost: Kafka keeps collecting. Parked messages are not tried
meanwhile. "onlyonce cursor show" shows the pauses.

If it is paused already, nothing is written, and the status is 0.

Example:
  onlyonce cursor pause -scope stock -topic orders -partition 3 -reason "stock table is being repaired, INC-9"`,
			Waits: "waiting for another transaction",
			Page:  "pause",
			Title: "Pause",
			Means: "Owners finish the batch that they are in, and keep their partitions. What is parked is " +
				"not tried meanwhile. A pause outlasts restarts.",
		},
		fields: cursorFields, begin: whole,
		do: ops.PauseCursor,
		would: func(in *ops.CursorName, d *ops.Paused) (s Said) {
			s.say("Pause %s: %d cursors in use.",
				(&ops.Pause{Scope: in.Scope, Topic: in.Topic, Partition: in.Partition}).String(), d.Cursors)
			if d.Cursors == 0 {
				s.say("Is the name right? There is no such cursor yet. A consumer that makes one is paused at once.")
			}
			return s
		},
		then: "the owner stops within two seconds, after its current batch.",
	}.decision()
}

// cursorFields name a partition, a topic or a scope.
func cursorFields(in *ops.CursorName) []Field {
	return []Field{
		At(&in.Scope, "scope", "S", "the scope S of the consumer").needed(),
		At(&in.Topic, "topic", "T", "the topic T"),
		At(&in.Partition, "partition", "N", "the partition N"),
	}
}

// whole lets an input without a partition mean the whole topic, or the whole scope.
func whole(in *ops.CursorName) { in.Partition = -1 }

// done is the sentence after a decision that has no figures.
func done(audit int64, then string) []string {
	if then == "" {
		return []string{fmt.Sprintf("Done; audit row %d.", audit)}
	}
	return []string{fmt.Sprintf("Done; audit row %d: %s", audit, then)}
}

func resumeCursor() *Decision {
	return entry[ops.CursorName, ops.Paused]{
		Decision: Decision{
			Name:    "cursor resume",
			Summary: "end a pause",
			Help: `
Ends a pause that was made with the same -scope, -topic and -partition. A pause of a whole scope or
topic holds every partition of it until it is ended itself; pauses of single partitions outlast it.
Work continues within two seconds.

If it is not paused, nothing is written, and the status is 0.

Example:
  onlyonce cursor resume -scope stock -topic orders -partition 3 -reason "repaired, INC-9"`,
			Waits: "waiting for another transaction",
			Page:  "resume",
			Title: "Resume",
			Means: "Work continues within two seconds. A pause of the whole scope and pauses of single " +
				"partitions end one by one.",
		},
		fields: cursorFields, begin: whole,
		do: ops.ResumeCursor,
		would: func(_ *ops.CursorName, d *ops.Paused) (s Said) {
			s.say("Resume %s, paused at %s by %s: %s",
				d.Was.String(), show.Instant(d.Was.PausedAt), d.Was.Actor, d.Was.Reason)
			for _, o := range d.Others {
				s.say("Still paused: %s, by %s: %s", o.String(), o.Actor, o.Reason)
			}
			return s
		},
		then: "work continues within two seconds.",
	}.decision()
}

func retire() *Decision {
	return entry[ops.RetireInput, ops.CursorChange]{
		Decision: Decision{
			Name:    "cursor retire",
			Summary: "take a cursor out of use, or those of a topic or scope",
			Help: `
Takes a cursor out of use: of a topic that is gone, or of a consumer that will not come back.
Without -partition it does that with every cursor of the topic that is in use,
and with -scope alone with every one of the scope. In one transaction the owners
are fenced out, the cursors are marked, and an audit row says who did it and
why.

No consumer works on a retired cursor: one that gets its partition halts, with reason "retired".
No message at or after its position is handled, and its parked messages are not tried again. The
cursor holds back retention for one horizon more, because it may be moved with its keys or brought
back, and then no longer. The row stays, so that the partition is not started over by mistake:
"onlyonce cursor adopt -at OFFSET" brings it back.

Example:
  onlyonce cursor retire -scope stock -topic orders-2023 -reason "topic deleted, OPS-12"`,
			Danger: true,
			Waits:  "waiting for the owner's batch to end",
		},
		fields: func(in *ops.RetireInput) []Field { return cursorFields(&in.CursorName) },
		begin:  func(in *ops.RetireInput) { whole(&in.CursorName) },
		shown:  func(in *ops.RetireInput) **ops.CursorChange { return &in.Shown },
		do:     ops.RetireCursor,
		would: func(_ *ops.RetireInput, d *ops.CursorChange) Said {
			if d.Partition == nil {
				return retiredTopic(d)
			}
			s := cursorChange(d.Before, d.After)
			s.say("It is out of use from then on: nothing at or after offset %d is handled, until "+
				"`onlyonce cursor adopt -at OFFSET` brings it back.", d.Before.Position)
			if *d.Parked > 0 {
				s.say("%d parked messages of it are not settled. None is tried again: discard them, or "+
					"settle them before you retire it.", *d.Parked)
			}
			if !d.Before.Clean {
				s.say("Its last owner did not release it properly: it died, is halted, or still works. If " +
					"it works it will halt.")
			}
			if d.Before.ReplayUntil != nil {
				s.say("A replay is under way, which interrupted the work at offset %d.", *d.Before.ReplayResume)
			}
			return s
		},
		done: func(_ *ops.RetireInput, d *ops.CursorChange) []string {
			if d.Partition == nil {
				return []string{fmt.Sprintf("Done: %s retired; audit row %d.",
					show.Count(int64(len(d.Partitions)), "cursor"), d.AuditID)}
			}
			return []string{fmt.Sprintf("Done: retired at offset %d; audit row %d.", d.After.Position, d.AuditID)}
		},
	}.decision()
}

// retiredTopic shows the cursors of a topic or scope that are retired.
func retiredTopic(d *ops.CursorChange) Said {
	s := Said{
		Head:    fmt.Sprintf("Cursors of scope %s that are in use:", d.Scope),
		Columns: []string{"TOPIC", "PARTITION", "POSITION", "RELEASED", "PARKED"},
	}
	held := 0
	parked := int64(0)
	for i := range d.Partitions {
		p := &d.Partitions[i]
		s.row(p.Topic, *p.Partition, p.Before.Position, p.Before.Clean, *p.Parked)
		parked += *p.Parked
		if !p.Before.Clean {
			held++
		}
	}
	s.say("They are out of use from then on: nothing at or after these positions is handled, until " +
		"`onlyonce cursor adopt -at OFFSET` brings a partition back.")
	if parked > 0 {
		s.say("%d parked messages of them are not settled. None is tried again: discard them, or settle "+
			"them before you retire the cursors.", parked)
	}
	if held > 0 {
		s.say("The last owners of %d did not release them properly: they died, are halted, or still work. "+
			"Those that work will halt.", held)
	}
	return s
}

// From is another database, from which something moves here.
type From struct {
	URL          string
	StandardKeys bool
	Late         bool

	DB   ops.DB // of URL, which the program opens
	Name string
}

func (f *From) fields() []Field {
	return []Field{
		At(&f.URL, "from", "URL", "the database that it moves here from, as a URL"),
		Option(&f.StandardKeys, "standard-keys",
			"with -from: bring the keys of standard_keys and its classes too"),
		Option(&f.Late, "late", "with -from: although keys may be forgotten there by now"),
	}
}

// Elsewhere is the other database that an input names.
func (f *From) Elsewhere() *From { return f }

// Check returns an error unless the fields go together.
func (f *From) check() error {
	if f.URL == "" && (f.StandardKeys || f.Late) {
		return &ops.Error{Kind: ops.ErrInvalid, Reason: "`StandardKeys` and `Late`: only with `From`"}
	}
	return nil
}

// origin is nil if nothing moves.
func (f *From) origin(as string) *ops.Origin {
	if f.URL == "" {
		return nil
	}
	return &ops.Origin{DB: f.DB, Name: f.Name, As: as, StandardKeys: f.StandardKeys, Late: f.Late}
}

type adopting struct {
	ops.AdoptInput
	From
}

func (in *adopting) Check() error {
	ask := in.AdoptInput
	ask.From = in.origin("")
	if err := ask.Check(); err != nil {
		return err
	}
	return in.check()
}

func adoptingFields(in *adopting) []Field {
	return append([]Field{
		At(&in.Scope, "scope", "S", "the scope S of the consumer").needed(),
		At(&in.Topic, "topic", "T", "the topic T").needed(),
		At(&in.Partition, "partition", "N", "the partition N"),
		At(&in.Halted, "halted", "REASON", "all partitions of the topic that are halted for REASON"),
		At(&in.Group, "group", "G",
			"the Kafka group G that is to own the cursor (default: the next one to come)").
			asked("Group", "The Kafka group that is to own the cursor. Empty: the next group that takes it."),
		Option(&in.OldGroupStopped, "old-group-stopped",
			"with -group: although the old group has not released the cursor, because its "+
				"processes died").
			asked("The old group's processes have ended, although they did not release the cursor", ""),
		At(&in.At, "at", "OFFSET",
			"the OFFSET that is to be handled next; with -halted also first, last or position "+
				"(default: the position stays)").
			asked("Position", "The offset that is to be handled next. Empty: it stays as it is."),
	}, in.From.fields()...)
}

func adopt() *Decision {
	return entry[adopting, ops.CursorChange]{
		Decision: Decision{
			Name:    "cursor adopt",
			Summary: "resolve a halt: set a position, a group, or move it here",
			Help: `
Resolves a halt, in one transaction: the owner of the cursor is fenced out, the cursor is changed,
and an audit row says who did it and why. A consumer that is halted looks again every few seconds
and continues by itself. "onlyonce status" prints the command for each halt.

With -at the position is set (halts "new-topic", "foreign-cluster", "truncated", "gap",
"history-lost"): OFFSET is the next that will be handled, in whichever topic of that name the next
owner finds, and attempts begin anew. Offsets between the old position and a higher OFFSET are never
handled. With a lower one they are handled again: messages with a key that is still kept are found
to be duplicates, others are applied twice ("onlyonce replay" handles messages again). If there is
no cursor -at makes one. It brings a retired cursor back, and it ends a replay.

With -halted and without -partition all partitions of the topic that are halted for REASON are
adopted, in one transaction. There -at can also be "first" or "last", where the log of each begins
or ends by its owner's last report, or "position", where each of them is.

Two services with one scope are a mistake: change Config.Scope of one of them. If a group was
renamed, stop the old one, and then give -group; a cursor that the old group has not released is not
handed over, unless -old-group-stopped says that its processes died.

Without -at only the group changes (halt "foreign-group"): the next owner stamps its own, or the one
that -group names. The position stays, and so does everything that proves that the log is the same.
With -group and without -partition all partitions of the topic that are in use are handed over, in
one transaction.

With -from a partition moves here from another database (a shard; docs/scaling.md has the whole
procedure). Its cursor there must be retired, for less than keys are remembered there (else -late
says that no copies can come any more), not paused, and without parked messages that are not
settled. Position, group, cluster and topic are taken from it, and every key of its scope's ring is
claimed here too, so that copies of messages that were applied there are recognized; all in one
transaction. It can take as long as the keys need: a million in seconds, or in a minute if the
server is busy. -standard-keys brings those of standard_keys too, for handlers that claim keys
themselves (dedupe.Claim): only if such ids mean the same in both databases, because an order 17 of
each would be taken for one. The login needs the rights of a consumer here besides those of an
operator.

If the last owner's group still runs, it may be the next owner: stop it first, or give -group.

Examples:
  onlyonce cursor adopt -scope stock -topic orders -partition 0 -at 1200 -reason "retention took 1100 to 1199, INC-7"
  onlyonce cursor adopt -scope stock -topic orders -halted new-topic -at first -reason "topic made anew, INC-8"
  onlyonce cursor adopt -postgres "$SHARD_B" -from "$SHARD_A" -scope stock -topic orders -partition 3 -reason "OPS-40"`,
			Danger: true,
			Waits:  "waiting for the owner's batch to end, or for keys to come over",
			Page:   "adopt",
			Title:  "Adopt",
			Means: "Resolves a halt: the owner is fenced out, and the cursor gets another group or another position. " +
				"Messages between the old position and a higher one are never handled; those above a lower " +
				"one are handled again.",
		},
		fields: adoptingFields,
		needs:  []string{"partition", "halted", "group"},
		shown:  func(in *adopting) **ops.CursorChange { return &in.Shown },
		do: func(ctx context.Context, db ops.DB, by ops.By, in adopting) (*ops.CursorChange, error) {
			in.AdoptInput.From = in.origin("")
			return ops.AdoptCursor(ctx, db, by, in.AdoptInput)
		},
		would: func(_ *adopting, d *ops.CursorChange) Said {
			if d.Partition == nil {
				return adoptedTopic(d)
			}
			return adopted(d)
		},
		done: func(_ *adopting, d *ops.CursorChange) []string {
			if d.Partition == nil {
				return []string{fmt.Sprintf("Done: %s adopted; audit row %d. Halted consumers look again "+
					"within seconds.", show.Count(int64(len(d.Partitions)), "partition"), d.AuditID)}
			}
			return []string{fmt.Sprintf("Done: the next offset is %d; audit row %d. A halted consumer looks "+
				"again within seconds.", d.After.Position, d.AuditID)}
		},
	}.decision()
}

// adoptedTopic shows the partitions that are adopted.
func adoptedTopic(d *ops.CursorChange) Said {
	s := Said{
		Head:    fmt.Sprintf("Cursors of scope %s, topic %s:", d.Scope, d.Topic),
		Columns: []string{"PARTITION", "POSITION", "THEN", "GROUP NOW", "GROUP THEN", "RELEASED"},
	}
	skipped := int64(0)
	repeated := int64(0)
	for i := range d.Partitions {
		p := &d.Partitions[i]
		s.row(*p.Partition, p.Before.Position, p.After.Position, p.Before.Group, p.After.Group, p.Before.Clean)
		skipped += *p.Skipped
		repeated += *p.Repeated
	}
	if skipped+repeated == 0 {
		s.say("The positions stay as they are: nothing is skipped, and nothing is handled again.")
	} else {
		s.say("If the topic is still the same, %d offsets are skipped and never handled, and %d are handled "+
			"again: those whose keys are still kept are duplicates.", skipped, repeated)
	}
	return s
}

// cursorChange shows a cursor before, if there was one, and after.
func cursorChange(was, is *ops.Cursor) Said {
	s := Said{
		Head:    fmt.Sprintf("cursor of scope %s, topic %s, partition %d", is.Scope, is.Topic, is.Partition),
		Columns: []string{"", "BEFORE", "AFTER"},
	}
	row := func(what string, show func(*ops.Cursor) string) {
		before := "none"
		if was != nil {
			before = show(was)
		}
		s.Rows = append(s.Rows, []string{what, before, show(is)})
	}
	stamp := func(of func(*ops.Cursor) *string) func(*ops.Cursor) string {
		return func(c *ops.Cursor) string {
			if p := of(c); p != nil {
				return *p
			}
			return "the next owner's"
		}
	}
	row("position", func(c *ops.Cursor) string { return strconv.FormatInt(c.Position, 10) })
	row("run", func(c *ops.Cursor) string { return strconv.Itoa(int(c.Run)) })
	row("group", stamp(func(c *ops.Cursor) *string { return c.Group }))
	row("cluster", stamp(func(c *ops.Cursor) *string { return c.ClusterID }))
	row("topic id", stamp(func(c *ops.Cursor) *string { return c.TopicID }))
	row("anchor", func(c *ops.Cursor) string { return orDash(c.AnchorOffset) })
	row("attempts", tried)
	row("epoch", func(c *ops.Cursor) string { return strconv.FormatInt(c.Epoch, 10) })
	row("state", (*ops.Cursor).State)
	return s
}

func orDash(n *int64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatInt(*n, 10)
}

// adopted shows an adoption: the cursor before and after, and what that means for messages and
// owners.
func adopted(d *ops.CursorChange) Said {
	s := cursorChange(d.Before, d.After)
	b := d.Before
	c := d.After
	switch {
	case d.From != nil:
		s.movedHere(d)
		return s
	case b == nil:
		s.say("There was no cursor: work starts at offset %d. How many messages are skipped or handled again "+
			"is not known here.", c.Position)
		return s
	}
	if b.RetiredAt != nil {
		s.say("The cursor was retired, and is brought back.")
	}
	if b.ReplayUntil != nil && c.ReplayUntil == nil {
		s.say("The replay that is under way up to offset %d ends here. It interrupted the work at offset "+
			"%d: -at %d continues there.",
			*b.ReplayUntil, *b.ReplayResume, *b.ReplayResume)
	}
	switch {
	case *d.Skipped > 0:
		s.say("Skipped, if the topic is still the same: %d offsets, %d to %d. They are never handled.",
			*d.Skipped, c.Position-*d.Skipped, c.Position-1)
	case *d.Repeated > 0:
		s.say("Handled again, if the topic is still the same: %d offsets, %d to %d. Those whose keys are "+
			"still kept are duplicates; the others are applied twice.",
			*d.Repeated, c.Position, c.Position+*d.Repeated-1)
		s.passesOver(*d.Parked)
	case c.Run == b.Run:
		s.say("Nothing is skipped and nothing handled again. Cluster, topic and position stay: a halt for " +
			"another reason than foreign-group needs -at OFFSET.")
	default:
		s.say("Nothing is skipped and nothing handled again, if the topic is still the same.")
	}
	if c.Group == nil && b.Group != nil && !b.Clean {
		s.say("Group %s did not release the cursor properly: it died, is halted, or still works. If it runs "+
			"it may be the next owner again; -group keeps it out.", *b.Group)
	}
	return s
}

// passesOver says what becomes of messages of the range that are parked.
func (s *Said) passesOver(parked int64) {
	if parked > 0 {
		s.say("Of these messages %d are parked and not settled: they are passed over, and wait as before to "+
			"be redriven or discarded.", parked)
	}
}

// movedHere adds what it means to take a partition over from another database.
func (s *Said) movedHere(d *ops.CursorChange) {
	s.say("The position is that of %s, where the cursor was retired at %s: what is below was handled there, "+
		"and nothing is handled again.",
		d.From.Database, show.Instant(*d.From.Cursor.RetiredAt))
	if d.Before != nil {
		s.say("The cursor was retired here, and is brought back.")
	}
	if d.From.Keys == nil {
		s.say("The keys that are kept there are claimed here too.")
		return
	}
	s.say("Keys that came with it: %d.", *d.From.Keys)
	if *d.From.Conflicts > 0 {
		s.say("%d keys are claimed here for another payload, and stay so.", *d.From.Conflicts)
	}
}
