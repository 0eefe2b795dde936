package consumer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/show"
)

// SQLSTATEs of the schema onlyonce.
const (
	codeFenceLost   = "OO001" // another owner, or another transaction, has moved the position
	codeRaceLost    = "23505" // at the fence: another one from the same position has committed
	codeKeyNotFresh = "23505" // at the claim: a key of the optimistic claim is not new
	codeBlocked     = "OO006" // an ordering key is blocked by a parked message
)

// SQLSTATEs of PostgreSQL (Appendix A) that are not the message's fault: the transaction runs
// again.
const (
	codeLockTimeout = "55P03"
	classResources  = "53"    // insufficient resources
	codeOwnLimit    = "53400" // in that class, but the statement's own: temp_file_limit
	// Sessions that the server ends.
	codeAdminShutdown      = "57P01" // an administrator or a fast shutdown
	codeCrashShutdown      = "57P02" // another session has crashed
	codeNotNow             = "57P03" // the server is starting or stopping
	codeIdleTimeout        = "25P03" // idle_in_transaction_session_timeout
	codeTransactionTimeout = "25P04" // transaction_timeout
	classData              = "22"    // data exceptions
	classIntegrity         = "23"    // integrity constraint violations
)

// Permanent marks an error that no retry will repair, for example an order with an unknown product.
// The message is parked and not tried again. Nil stays nil.
//
// Only the error of a run with the message alone in its transaction counts. After an error in a
// batch, even in a batch of one message, the message runs alone at once, and the result of that run
// decides.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// IsPermanent reports whether an error was marked by [Permanent].
func IsPermanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p)
}

// hopeless reports whether no retry will repair an error: the handler has marked it, or it is a
// mistake of the program that each run repeats. For example, the handler sends a COMMIT or enqueues
// two calls with one name.
func hopeless(err error) bool { return IsPermanent(err) || guard.IsMisuse(err) }

// RetryAfter marks an error that is not worth another try before d has passed, for example because
// of a remote's Retry-After header. It counts as an attempt, like any other error. Under
// [ParkOrderingKey] only the message's ordering key waits; otherwise the partition does. If d is 0
// or negative, the error is returned as it is. A d above 24 hours counts as 24 hours. Nil stays
// nil.
//
// Like [Permanent], it counts only from a run with the message alone: after an error in a batch
// that run follows at once, whatever d is.
func RetryAfter(err error, d time.Duration) error {
	if err == nil || d <= 0 {
		return err
	}
	return &retryAfterError{err, min(d, maxRetryAfter)}
}

// maxRetryAfter is the longest wait that a handler may ask for. If a stored due time is further
// ahead, a wrong clock has written it (T9).
const maxRetryAfter = 24 * time.Hour

type retryAfterError struct {
	error
	after time.Duration
}

func (e *retryAfterError) Unwrap() error { return e.error }

// waitAtLeast returns the wait that an error asks for, or d, the policy's wait, if that is longer.
func waitAtLeast(err error, d time.Duration) time.Duration {
	var r *retryAfterError
	if errors.As(err, &r) {
		return max(d, r.after)
	}
	return d
}

// FailMessage marks the error of one message in a [BatchHandler]; use errors.Join for several. The
// transaction rolls back. The consumer then tries the messages before m without it, and m alone.
// Nil stays nil.
func FailMessage(m *Message, err error) error {
	if err == nil || m == nil {
		return err
	}
	return &messageError{m, err}
}

type messageError struct {
	m   *Message
	err error
}

func (e *messageError) Error() string {
	return fmt.Sprintf("message at %s/%d/%d: %v", e.m.Topic, e.m.Partition, e.m.Offset, e.err)
}
func (e *messageError) Unwrap() error { return e.err }

// firstFailed returns the index of the first message that err marks as failed, or -1 if it marks
// none of them.
func firstFailed(err error, msgs []*Message) int {
	first := -1
	var walk func(error)
	walk = func(err error) {
		switch e := err.(type) { //nolint:errorlint // it walks the whole tree itself
		case nil:
			return
		case *messageError:
			for i, m := range msgs {
				if m.Topic == e.m.Topic && m.Partition == e.m.Partition && m.Offset == e.m.Offset && (first < 0 || i < first) {
					first = i
				}
			}
		case interface{ Unwrap() []error }:
			for _, one := range e.Unwrap() {
				walk(one)
			}
		case interface{ Unwrap() error }:
			walk(e.Unwrap())
		}
	}
	walk(err)
	return first
}

// blockedError means that a message would have to be set aside, but Config.OnFailure forbids it.
type blockedError struct{ *verdict }

func (e *blockedError) Error() string { return fmt.Sprintf("%s: %v", e.reason, e.err) }
func (e *blockedError) Unwrap() error { return e.err }

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
	// HaltHistoryLost: by Kafka's offset this consumer has worked here, but the database has no
	// record of it.
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
	// HaltNoShard: Shards.Of returns no database for the partition.
	HaltNoShard HaltReason = "no-shard"
	// HaltCopies: Config.Copies, or the topics without it, differ from what the ids of the scope
	// mean.
	HaltCopies HaltReason = "copies"
	// HaltBlocked: a message cannot be applied and must not be passed over, because of
	// BlockPartition or because the server refuses its transaction.
	HaltBlocked HaltReason = "blocked"
	// HaltEverythingFails: nearly all of the last messages have failed, see Brake. The halt ends by
	// itself when a message is applied.
	HaltEverythingFails HaltReason = "everything-fails"
)

// HaltError means that a partition cannot continue by itself without the risk of losing or
// repeating messages. It names the command that resolves the halt. Other partitions continue; the
// halted one checks again every few seconds.
type HaltError struct {
	Scope     string
	Group     string // the group that this process is a member of
	Topic     string
	Partition int32
	Position  int64
	Reason    HaltReason
	Detail    string

	// In a halt "other-shard", Shard is the database that has the partition by Shards.Of, and Other
	// is the one that has its cursor. Both are empty if there is one database.
	Shard, Other string

	// Redrive are the commands that retry what was parked, in a halt "everything-fails". Run them
	// when the cause is repaired.
	Redrive []string

	// RetainedUntil is when retention by time may begin to delete the record at Position. Zero if
	// it is not known or there is no such time.
	RetainedUntil time.Time

	otherRetired bool // Other's cursor is retired
	otherAhead   bool // and is ahead of the one in Shard
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
		resolve = "to go on at once: " + e.Command() + "; when the cause is mended, to have what was parked tried again: " + strings.Join(e.Redrive, "; ")
	case HaltForeignGroup:
		resolve = "if these are two services, change Config.Scope of one of them; if the group was renamed, stop the old one, and then: " + e.Command()
	case HaltNoShard:
		resolve = "correct Shards and deploy"
	case HaltCopies:
		resolve = "if this is the same consumer set Config.Copies to what the scope has, or choose it where that is not set; if it is another one give it a Scope of its own"
	case HaltRetired:
		if e.Shard != "" {
			resolve = "if it was moved to another shard deploy the Shards that say so; to bring it back: " + e.Command()
		}
	case HaltOtherShard:
		if !e.otherRetired {
			resolve = "if Shards are wrong correct them and deploy; to move the partition (docs/scaling.md): " + e.Command()
		}
		if e.otherAhead {
			resolve = fmt.Sprintf("it was taken over from the wrong database: %s, and then %s", e.Command(), e.command("adopt", e.Shard, "-from", show.Quote("URL-OF-"+e.Other)))
		}
	}
	return resolve
}

// Command returns the command that resolves the halt, for a POSIX shell. If the halt takes two, it
// returns the first; if none resolves it (no-shard, copies), it returns "". The operator fills in
// OFFSET, if the halt leaves a choice, WHY, and URL-OF-NAME, the address of shard NAME. In a halt
// "foreign-group" the command is refused until the other group has released the cursor.
func (e *HaltError) Command() string {
	switch {
	case e.Reason == HaltNoShard, e.Reason == HaltCopies:
		return ""
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
	return e.write([]string{"parked", "redrive"}, e.Shard, "-kind", kind, "-parked-for", reason, "-limit", "10000")
}

// command returns a command about the halted cursor in a shard.
func (e *HaltError) command(verb, shard string, more ...string) string {
	return e.write([]string{"cursor", verb}, shard, more...)
}

func (e *HaltError) write(verb []string, shard string, more ...string) string {
	args := append([]string{"onlyonce"}, verb...)
	if shard != "" {
		args = append(args, "-postgres", show.Quote("URL-OF-"+shard))
	}
	args = append(args, "-scope", show.Quote(e.Scope), "-topic", show.Quote(e.Topic), "-partition", strconv.Itoa(int(e.Partition)))
	return strings.Join(append(append(args, more...), "-reason", "WHY"), " ")
}

// errMoved means that this process still owns the position, but it is not where the process
// thought. An operator has set it, or an earlier attempt with an unknown outcome has committed.
// Continue from the database's position.
var errMoved = errors.New("the position was moved")

// sqlState returns the SQLSTATE of a failure, or "" if there is none or the server sent none.
func sqlState(failed *guard.Failure) string {
	if failed == nil {
		return ""
	}
	return guard.SQLState(failed.Err)
}
