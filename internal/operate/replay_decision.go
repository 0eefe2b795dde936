package operate

import (
	"fmt"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

func replay() *Decision {
	return entry[Replaying, ops.Replayed]{
		Decision: Decision{
			Name:    "replay",
			Summary: "handle messages again, and apply them again",
			Help: `
Handles the messages from -from up to, and without, -to once more, although they are done: after a
handler was wrong and its effects were undone. Each of them is applied again, whatever its id;
copies within the range are still applied once. Then the work continues where it is now.

Only the range counts. If a record in the range is a copy of a message outside of it (an
earlier offset, or another partition), it is applied, although that message was applied and is not
undone. Choose a range that has such a copy's original in it, or undo the original's effect too.
Copies that arrive after the replay are duplicates, also of messages that only the replay handled.
Config.TooOld is ignored during a replay.

In one transaction the owner is fenced out, the position is set, the replay gets a number that is
part of its messages' keys, and an audit row says who did it and why. A consumer that runs begins
within seconds by itself; without one, the next to start does. Meanwhile new messages wait.
"onlyonce cursor show" tells how far it is, and "onlyonce cursor adopt -at OFFSET" ends it early.
Only a consumer can tell whether the log still holds the range: it halts if it does not.

Calls that handlers enqueue keep their keys. A call whose row is still in the outbox is not sent
again, and one that now asks for other bytes is a conflict, which fails its message. Where the row
is gone the call is written again, under its key: it is sent if the remote's key window, counted
from the time of the message, is still open, and otherwise parked as reconcile. With -resend calls
get keys of their own, so that every remote applies them AGAIN: a charge is charged twice.

It is refused while a replay is under way. Messages of the range that are parked and not settled are
passed over, and wait as before.

With -since and -until the range is that of times: Kafka's brokers are asked for the first messages
of these times, by the timestamps of producers or of the brokers, as the topic is configured. If
producers' timestamps do not rise, messages outside of the times may lie between these two, and some
within the times outside; -dry-run shows the offsets. If the brokers need TLS or a login,
-broker-login names a file in JSON with the fields tls, tls_ca, tls_cert, tls_key, sasl, user,
password, token and token_extensions, as a sink of type kafka has them ("onlyonce-relay -help").
Stored events are looked up in the database.

Without -partition that is done with each partition of the topic, and with -scope alone of the
scope, in one transaction. They are one replay with one number, so copies in different partitions
are applied once. Partitions in which no handled message lies in this time are left out. With
-follow it says how far the replay is, until it has ended; to interrupt that does not end the
replay.

Example:
  onlyonce replay -scope stock -topic orders -partition 0 -from 1200 -to 1300 -reason "held with the wrong sign, INC-7"
  onlyonce replay -scope stock -topic orders -partition 0 -since 2026-03-01T12:00:00Z -until
      2026-03-01T13:00:00Z -dry-run
  onlyonce replay -scope stock -topic orders -since 36h -broker-login kafka.json -reason "held with
      the wrong sign, INC-7" -follow`,
			Danger: true,
			Waits:  "waiting for the owner's batch to end",
			Page:   "replay",
			Title:  "Replay",
			Means: "Messages of the range are handled and applied again, although that was done. First " +
				"undo what they did. New messages wait until the replay is over.",
		},
		fields: replayFields,
		needs:  []string{"from", "since"},
		shown:  func(in *Replaying) **ops.Replayed { return &in.Shown },
		begin: func(in *Replaying) {
			whole(&in.CursorName)
			in.without = new(int)
		},
		do:    replaying,
		would: wouldReplay,
		done: func(in *Replaying, d *ops.Replayed) []string {
			if d.Partitions != nil {
				return []string{fmt.Sprintf("Done: replay %d of %s; audit row %d. Consumers that run begin "+
					"within seconds. `onlyonce cursor show` shows how far they are.",
					d.Replay, show.Count(int64(len(d.Partitions)), "partition"), d.AuditID)}
			}
			return []string{fmt.Sprintf("Done: replay %d from offset %d up to %d, then on from %d; audit "+
				"row %d. A consumer that runs begins within seconds.",
				d.Replay, d.From, d.To, d.Resume, d.AuditID)}
		},
	}.decision()
}

// wouldReplay shows the ranges, and what it means that they are handled again.
func wouldReplay(in *Replaying, d *ops.Replayed) (s Said) {
	if d.Partitions != nil {
		s = in.ranges(d)
	} else {
		s = in.oneRange(d)
	}
	if d.Resend {
		s.say("-resend: calls that their handlers enqueue get NEW keys. Every remote applies them AGAIN: a " +
			"customer who was charged once is charged twice.")
		return s
	}
	s.say("Calls that their handlers enqueue keep their keys: those whose rows are still in the outbox are " +
		"not sent again, and one with other bytes is a conflict, which fails its message. A call whose row " +
		"is gone is written again under its key: sent if the remote's key window, counted from the time of " +
		"the message, is open, else parked as reconcile.")
	return s
}

// oneRange shows the range of one partition.
func (in *Replaying) oneRange(d *ops.Replayed) Said {
	s := cursorChange(d.Before, d.After)
	if !in.Since.IsZero() {
		s.say("The first message of %s or later is at offset %d.", show.Instant(in.Since.Time), d.From)
	}
	if !in.Until.IsZero() {
		s.say("The range ends before offset %d: the first message of %s or later, or the position if that "+
			"is before it.", d.To, show.Instant(in.Until.Time))
	}
	s.say(
		"Applied AGAIN: every message from offset %d to %d that the log still holds, %d offsets. Their ids "+
			"do not keep them out; copies within the range are applied once; "+
			"a copy whose original lies outside of the range is applied too, although the original is not undone.",
		d.From,
		d.To-1,
		d.To-d.From,
	)
	if d.From < d.Before.StartOffset {
		s.say("Offsets below %d, where this cursor began, were never handled by it: they are handled for "+
			"the first time.", d.Before.StartOffset)
	}
	s.passesOver(d.Parked)
	s.say("Then the work continues at offset %d. Until then messages from there on wait.", d.Resume)
	return s
}

// ranges shows the ranges of several partitions.
func (in *Replaying) ranges(d *ops.Replayed) Said {
	s := Said{
		Head:    fmt.Sprintf("Cursors of scope %s:", d.Scope),
		Columns: []string{"TOPIC", "PARTITION", "FROM", "TO", "OFFSETS", "THEN ON FROM", "PARKED"},
	}
	offsets := int64(0)
	early := 0
	for i := range d.Partitions {
		p := &d.Partitions[i]
		s.row(p.Topic, p.Partition, p.From, p.To, p.To-p.From, p.Resume, p.Parked)
		offsets += p.To - p.From
		if p.From < p.Before.StartOffset {
			early++
		}
	}
	s.say("Each range begins with the first message of %s or later.", show.Instant(in.Since.Time))
	if !in.Until.IsZero() {
		s.say("It ends before the first message of %s or later, or at the position if that is before it.",
			show.Instant(in.Until.Time))
	}
	s.say(
		"Applied AGAIN: every message of these ranges that the log still holds, %d offsets in %s. Their ids "+
			"do not keep them out; copies within the ranges are applied once; "+
			"a copy whose original lies outside of them is applied too, although the original is not undone.",
		offsets,
		show.Count(int64(len(d.Partitions)), "partition"),
	)
	if early > 0 {
		s.say("In %s the range begins below the cursor's start: messages that were never handled by it are "+
			"handled for the first time.", show.Count(int64(early), "partition"))
	}
	if in.without != nil && *in.without > 0 {
		s.say("Left out: %s without a handled message in this time.", show.Count(int64(*in.without), "partition"))
	}
	s.passesOver(d.Parked)
	s.say("Then the work continues where it is now. Until then new messages of these partitions wait.")
	return s
}
