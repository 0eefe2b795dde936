package consumer

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/show"
)

// HaltReason is why a partition is halted.
type HaltReason string

// Reasons for a halt.
const (
	// HaltForeignGroup: the cursor belongs to another Kafka group.
	HaltForeignGroup HaltReason = "foreign-group"
	// HaltForeignScope: consumers of another scope work in the group.
	HaltForeignScope HaltReason = "foreign-scope"
	// HaltForeignCluster: the cursor belongs to another Kafka cluster.
	HaltForeignCluster HaltReason = "foreign-cluster"
	// HaltNewTopic: the topic was deleted and created again.
	HaltNewTopic HaltReason = "new-topic"
	// HaltHistoryLost: Kafka's offset shows that this consumer has worked here, but the database
	// has no record of it.
	HaltHistoryLost HaltReason = "history-lost"
	// HaltTruncated: the log ends before the position, or holds another record there.
	HaltTruncated HaltReason = "truncated"
	// HaltGap: retention has deleted records that were not handled.
	HaltGap HaltReason = "gap"
	// HaltRetired: an operator has retired the cursor.
	HaltRetired HaltReason = "retired"
	// HaltOtherShard: the partition's cursor is in another shard, or was retired there and adopted
	// nowhere.
	HaltOtherShard HaltReason = "other-shard"
	// HaltNoShard: shard.Config.OfPartition names no database for the partition.
	HaltNoShard HaltReason = "no-shard"
	// HaltCopies: Config.Copies, or the topics if it is not set, contradict the meaning of the
	// scope's ids.
	HaltCopies HaltReason = "copies"
	// HaltClass: Config.Horizon differs from the scope's class of horizon.
	HaltClass HaltReason = "class"
	// HaltBlocked: a message cannot be applied and must not be passed over, because of
	// BlockPartition, because the server refuses its transaction, or because of [Unavailable].
	HaltBlocked HaltReason = "blocked"
	// HaltEverythingFails: nearly all of the last messages have failed, see Brake. The halt ends by
	// itself when a message is applied.
	HaltEverythingFails HaltReason = "everything-fails"
)

// HaltError means that a partition cannot continue without the risk of losing or repeating
// messages. It names the command that resolves the halt. Other partitions continue; the halted one
// checks again every few seconds.
type HaltError struct {
	Scope string
	Group string // the group that this process is a member of
	source.TopicPartition
	Position int64
	Reason   HaltReason
	Detail   string

	// In a halt "other-shard", Shard is the database that has the partition by
	// shard.Config.OfPartition, and Other is the one that has its cursor. Both are empty if there
	// is one database.
	Shard, Other string

	// Redrive has the commands that retry the parked messages, in a halt "everything-fails". Run
	// them once the cause is repaired. Messages that are too old have no command, because an
	// operator must first find out which of them were applied.
	Redrive []string

	// RetainedUntil is when retention by time may begin to delete the record at Position. Zero if
	// unknown or if there is no such time.
	RetainedUntil time.Time

	failed     []string // in a halt "everything-fails": the reasons for which Redrive retries
	parkedKind string   // and their kind

	resume *int64 // in a replay: the offset at which it interrupted the work

	blockedAt    int64 // in a halt "blocked": offset of the message
	otherRetired bool  // Other's cursor is retired
	otherAhead   bool  // and is ahead of the one in Shard

	class string // in a halt "class": the class of Config.Horizon
}

func (e *HaltError) Error() string {
	kept := ""
	if !e.RetainedUntil.IsZero() {
		kept = fmt.Sprintf("; retention may delete it from %s on", e.RetainedUntil.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("partition %s/%d halted at offset %d (%s): %s%s; %s",
		e.Topic, e.Partition, e.Position, e.Reason, e.Detail, kept, e.remedy().text())
}

// attributes returns what is logged of the halt, without the fields that are not set.
func (e *HaltError) attributes() []any {
	all := []any{
		"scope",
		e.Scope,
		"topic",
		e.Topic,
		"partition",
		e.Partition,
		"position",
		e.Position,
		"reason",
		string(e.Reason),
		"detail",
		e.Detail,
	}
	if e.Shard != "" {
		all = append(all, "shard", e.Shard)
	}
	if !e.RetainedUntil.IsZero() {
		all = append(all, "retained_until", e.RetainedUntil)
	}
	return append(all, "resolve", e.remedy().text())
}

// ownGroups is what to do about a group with two scopes.
const ownGroups = "if these are two consumers, give each a group of its own, and each handles every message; " +
	"if the scope was renamed, take the old name back, because under a new one every message is new"

// remedy is what to do about a halt, in the order of the steps.
type remedy []remedyStep

type remedyStep struct {
	when string // in words; empty: in any case
	// the command for this partition, and for all of the topic that are halted for the reason;
	// empty: none
	one, all string
}

// text is the whole of it.
func (r remedy) text() string {
	var parts []string
	for i, s := range r {
		if i == 0 && s.when == "" {
			s.when = "to resolve it"
		}
		parts = append(parts, strings.TrimPrefix(strings.TrimSuffix(s.when+": "+s.one, ": "), ": "))
	}
	return strings.Join(parts, "; ")
}

// words are when to do what, for a display that shows the commands separately.
func (r remedy) words() string {
	var all []string
	for _, s := range r {
		if s.when != "" {
			all = append(all, s.when)
		}
	}
	return strings.Join(all, "; ")
}

// commands are the commands, in their order: for this partition, and for all of the topic. If one
// of them is for a single partition only, there are none for all.
func (r remedy) commands() (one, all []string) {
	single := false
	for _, s := range r {
		if s.one != "" {
			one = append(one, s.one)
			all = append(all, s.all)
			single = single || s.all == ""
		}
	}
	if single {
		all = nil
	}
	return one, all
}

// remedy says what to do. The operator fills in OFFSET, if the halt leaves a choice, WHY, and
// URL-OF-NAME, the address of shard NAME.
func (e *HaltError) remedy() (r remedy) {
	add := func(when, one, all string) { r = append(r, remedyStep{when, one, all}) }
	halted := func(at string) string {
		return e.command("adopt", e.Shard, nil, "-halted", string(e.Reason), "-at", at)
	}
	from := e.command("adopt", e.Shard, &e.Partition, "-from", show.Quote("URL-OF-"+e.Other))
	at := func(offset string) string { return e.command("adopt", e.Shard, &e.Partition, "-at", offset) }
	// goOn adds the step after which the partition goes on. In a replay that step ends it where it
	// interrupted the work: a lower offset would handle again the messages after its range (F10).
	goOn := func(when, one, all string) {
		if e.resume == nil {
			add(when, one, all)
			return
		}
		add("to end the replay and continue where it interrupted the work", at(strconv.FormatInt(*e.resume, 10)), "")
		add("then, to handle what is left of its range, replay that", "", "")
	}
	switch e.Reason {
	case HaltEverythingFails:
		goOn("to continue at once", at(strconv.FormatInt(e.Position, 10)), halted("position"))
		for i, reason := range e.failed {
			when := ""
			if i == 0 {
				when = "once the cause is repaired, to retry the parked messages"
			}
			add(when, e.redrive(reason, &e.Partition), e.redrive(reason, nil))
		}
	case HaltForeignGroup: // by name: otherwise the old group, if it is alive, may be faster
		group := []string{"-group", show.Quote(e.Group)}
		add("if these are two services, change Config.Scope of one of them; if the group was renamed, stop "+
			"the old one, and then",
			e.command("adopt", e.Shard, &e.Partition, group...), e.command("adopt", e.Shard, nil, group...))
	case HaltForeignScope:
		add(ownGroups+"; to work in this partition all the same, from an offset on", at("OFFSET"), "")
	case HaltNoShard:
		add("correct shard.Config.OfPartition and deploy", "", "")
	case HaltCopies:
		add("if this is the same consumer set Config.Copies to what the scope has, or choose it where that "+
			"is not set; if it is another one give it a Scope of its own", "", "")
	case HaltClass:
		class := e.scopeCommand("inbox class", e.Shard, "-class", e.class)
		add("if the scope has the right class set Config.Horizon to it; to change the class of the scope", class, class)
	case HaltOtherShard:
		switch {
		case e.otherAhead:
			add("it was taken over from the wrong database", e.command("retire", e.Shard, &e.Partition), "")
			add("and then", from, "")
		case e.otherRetired:
			add("", from, "")
		default:
			add("if shard.Config.OfPartition is wrong correct it and deploy; to move the partition (docs/scaling.md)",
				e.command("retire", e.Other, &e.Partition), "")
		}
	case HaltNewTopic: // nothing that comes before the log's first record is left to handle
		add("", halted("first"), halted("first"))
	case HaltGap: // the same
		goOn("", halted("first"), halted("first"))
	case HaltBlocked:
		goOn("", at("OFFSET"), "")
	default:
		when := ""
		all := ""
		switch {
		case e.Reason == HaltRetired && e.Shard != "":
			when = "if it was moved to another shard deploy the shard.Config.OfPartition that says so; to bring it back"
		case e.Reason == HaltTruncated, e.Reason == HaltForeignCluster:
			all = halted("OFFSET")
		}
		add(when, at("OFFSET"), all)
	}
	return r
}

// Command returns the command that resolves the halt, for a POSIX shell. If the halt takes two, it
// returns the first; if no command resolves it (no-shard, copies), it returns "". In a halt
// "new-topic" or "gap" the command is for all partitions of the topic that are halted for it, and
// in a replay that halts as "gap", "blocked" or "everything-fails" it ends the replay. The operator
// fills in OFFSET, if the halt leaves a choice, WHY, and URL-OF-NAME, the address of shard NAME. In
// a halt "foreign-group" the command is refused until the other group has released the cursor.
func (e *HaltError) Command() string { return e.remedy()[0].one }

// redrive returns the command that retries what was parked for a reason.
func (e *HaltError) redrive(reason string, partition *int32) string {
	return e.commandLine("parked redrive",
		e.Shard, partition, "-kind", e.parkedKind, "-parked-for", reason, "-limit", "10000")
}

// command returns a command about the cursor of a partition in a shard, or about those of the
// topic.
func (e *HaltError) command(verb, shard string, partition *int32, more ...string) string {
	return e.commandLine("cursor "+verb, shard, partition, more...)
}

func (e *HaltError) commandLine(verb, shard string, partition *int32, more ...string) string {
	of := []string{"-topic", show.Quote(e.Topic)}
	if partition != nil {
		of = append(of, "-partition", strconv.Itoa(int(*partition)))
	}
	return e.scopeCommand(verb, shard, append(of, more...)...)
}

// scopeCommand returns a command about the scope in a shard.
func (e *HaltError) scopeCommand(verb, shard string, more ...string) string {
	args := []string{"onlyonce", verb}
	if shard != "" {
		args = append(args, "-postgres", show.Quote("URL-OF-"+shard))
	}
	args = append(args, "-scope", show.Quote(e.Scope))
	return strings.Join(append(append(args, more...), "-reason", "WHY"), " ")
}

func (e *engine) haltErrorAt(pos int64, reason HaltReason, detail string, args ...any) *HaltError {
	h := &HaltError{Scope: e.c.cfg.Scope, Group: e.c.source.Group(), TopicPartition: e.id.TopicPartition, Position: pos,
		Reason: reason, Shard: e.c.shard}
	if e.cur != nil && e.cur.replayUntil != nil {
		detail += "; a replay is under way up to offset %d, which interrupted the work at offset %d"
		args = append(args, *e.cur.replayUntil, e.cur.replayResume)
		h.resume = &e.cur.replayResume
	}
	h.Detail = fmt.Sprintf(detail, args...)
	return h
}
