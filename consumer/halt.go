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
	// BlockPartition or because the server refuses its transaction.
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
	return fmt.Sprintf("partition %s/%d halted at offset %d (%s): %s%s; %s", e.Topic, e.Partition, e.Position, e.Reason, e.Detail, kept, e.resolve())
}

// attributes returns what is logged of the halt, without the fields that are not set.
func (e *HaltError) attributes() []any {
	all := []any{"scope", e.Scope, "topic", e.Topic, "partition", e.Partition, "position", e.Position, "reason", string(e.Reason), "detail", e.Detail}
	if e.Shard != "" {
		all = append(all, "shard", e.Shard)
	}
	if !e.RetainedUntil.IsZero() {
		all = append(all, "retained_until", e.RetainedUntil)
	}
	return append(all, "resolve", e.resolve())
}

// resolve describes what to do, with the command.
func (e *HaltError) resolve() string {
	resolve := "to resolve it: " + e.Command()
	switch e.Reason {
	case HaltEverythingFails:
		resolve = "to continue at once: " + e.Command()
		if len(e.Redrive) > 0 {
			resolve += "; once the cause is repaired, to retry the parked messages: " + strings.Join(e.Redrive, "; ")
		}
	case HaltForeignGroup:
		resolve = "if these are two services, change Config.Scope of one of them; if the group was renamed, stop the old one, and then: " + e.Command()
	case HaltNoShard:
		resolve = "correct shard.Config.OfPartition and deploy"
	case HaltCopies:
		resolve = "if this is the same consumer set Config.Copies to what the scope has, or choose it where that is not set; if it is another one give it a Scope of its own"
	case HaltClass:
		resolve = "if the scope has the right class set Config.Horizon to it; to change the class of the scope: " + e.Command()
	case HaltRetired:
		if e.Shard != "" {
			resolve = "if it was moved to another shard deploy the shard.Config.OfPartition that says so; to bring it back: " + e.Command()
		}
	case HaltOtherShard:
		if !e.otherRetired {
			resolve = "if shard.Config.OfPartition is wrong correct it and deploy; to move the partition (docs/scaling.md): " + e.Command()
		}
		if e.otherAhead {
			resolve = fmt.Sprintf("it was taken over from the wrong database: %s, and then %s", e.Command(), e.command("adopt", e.Shard, "-from", show.Quote("URL-OF-"+e.Other)))
		}
	}
	return resolve
}

// Command returns the command that resolves the halt, for a POSIX shell. If the halt takes two, it
// returns the first; if no command resolves it (no-shard, copies), it returns "". The operator
// fills in OFFSET, if the halt leaves a choice, WHY, and URL-OF-NAME, the address of shard NAME. In
// a halt "foreign-group" the command is refused until the other group has released the cursor.
func (e *HaltError) Command() string {
	switch {
	case e.Reason == HaltNoShard, e.Reason == HaltCopies:
		return ""
	case e.Reason == HaltClass:
		return e.scopeCommand([]string{"inbox", "class"}, e.Shard, "-class", e.class)
	case e.Reason == HaltOtherShard && e.otherAhead:
		return e.command("retire", e.Shard)
	case e.Reason == HaltOtherShard && !e.otherRetired:
		return e.command("retire", e.Other)
	case e.Reason == HaltOtherShard:
		return e.command("adopt", e.Shard, "-from", show.Quote("URL-OF-"+e.Other))
	case e.Reason == HaltForeignGroup:
		// By name: otherwise the old group, if it is alive, may be faster.
		return e.command("adopt", e.Shard, "-group", show.Quote(e.Group))
	}
	if e.Reason == HaltEverythingFails {
		return e.command("adopt", e.Shard, "-at", strconv.FormatInt(e.Position, 10))
	}
	return e.command("adopt", e.Shard, "-at", "OFFSET")
}

// commands returns the commands that resolve the halt, in their order.
func (e *HaltError) commands() []string {
	var all []string
	if c := e.Command(); c != "" {
		all = append(all, c)
	}
	return append(all, e.Redrive...)
}

// redrive returns the command that retries what was parked of the partition.
func (e *HaltError) redrive(kind, reason string) string {
	return e.commandLine([]string{"parked", "redrive"}, e.Shard, "-kind", kind, "-parked-for", reason, "-limit", "10000")
}

// command returns a command about the halted cursor in a shard.
func (e *HaltError) command(verb, shard string, more ...string) string {
	return e.commandLine([]string{"cursor", verb}, shard, more...)
}

func (e *HaltError) commandLine(verb []string, shard string, more ...string) string {
	return e.scopeCommand(verb, shard, append([]string{"-topic", show.Quote(e.Topic), "-partition", strconv.Itoa(int(e.Partition))}, more...)...)
}

// scopeCommand returns a command about the scope in a shard.
func (e *HaltError) scopeCommand(verb []string, shard string, more ...string) string {
	args := append([]string{"onlyonce"}, verb...)
	if shard != "" {
		args = append(args, "-postgres", show.Quote("URL-OF-"+shard))
	}
	args = append(args, "-scope", show.Quote(e.Scope))
	return strings.Join(append(append(args, more...), "-reason", "WHY"), " ")
}
