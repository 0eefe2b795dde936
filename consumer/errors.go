package consumer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/guard"
)

// SQLSTATEs of the schema onlyonce.
const (
	codeFenceLost   = "OO001" // another owner, or another transaction, moved the position
	codeRaceLost    = "23505" // at the fence: another transaction from the same position committed meanwhile
	codeKeyNotFresh = "23505" // at the claim: a key of the optimistic claim is not new
	codeBlocked     = "OO006" // an ordering key is blocked by a parked message
)

// SQLSTATEs of PostgreSQL (Appendix A) that are no fault of the message: the transaction is run again.
const (
	codeLockTimeout = "55P03"
	classResources  = "53"    // insufficient resources
	codeOwnLimit    = "53400" // of that class, and the statement's own: temp_file_limit
	// Sessions that the server ends.
	codeAdminShutdown      = "57P01" // an administrator or a fast shutdown
	codeCrashShutdown      = "57P02" // another session has crashed
	codeNotNow             = "57P03" // the server starts or stops
	codeIdleTimeout        = "25P03" // idle_in_transaction_session_timeout
	codeTransactionTimeout = "25P04" // transaction_timeout
	classData              = "22"    // data exceptions
	classIntegrity         = "23"    // integrity constraint violations
)

// Permanent marks an error that no retry will mend: the message is parked, and not tried again. What counts is the error of a run in
// which the message stands alone. An error in a batch, also in a batch of one message, is followed by one such run at once; the message is
// judged by what that run returns. Nil stays nil.
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

// hopeless reports whether no retry will mend an error: its handler says so, or it is one of the program itself, such as a COMMIT in a handler or two calls of
// one name, which each run makes again.
func hopeless(err error) bool { return IsPermanent(err) || guard.IsMisuse(err) }

// RetryAfter marks an error that is not worth another try before d has passed, such as a remote's Retry-After. It counts as an attempt
// like any other error, and like [Permanent] it counts from a run in which the message stands alone: an error in a batch is followed by that
// run at once, whatever it asks for. Under [ParkOrderingKey] only the message's ordering key waits, otherwise the partition does. Nil
// stays nil; a d that is not positive changes nothing, and one above 24 hours counts as 24 hours.
func RetryAfter(err error, d time.Duration) error {
	if err == nil || d <= 0 {
		return err
	}
	return &retryAfterError{err, min(d, maxRetryAfter)}
}

// maxRetryAfter bounds what a handler may ask for. A due time further ahead was written by a clock that was wrong (T9).
const maxRetryAfter = 24 * time.Hour

type retryAfterError struct {
	error
	after time.Duration
}

func (e *retryAfterError) Unwrap() error { return e.error }

// waitAtLeast is the longer of what an error asks for and what the policy would wait.
func waitAtLeast(err error, d time.Duration) time.Duration {
	var r *retryAfterError
	if errors.As(err, &r) {
		return max(d, r.after)
	}
	return d
}

// FailMessage is what a [BatchHandler] returns for a message that it cannot apply; errors.Join makes one error of several. The
// transaction is rolled back, the messages before m are tried without it, and m is tried alone. Nil stays nil.
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

// firstFailed returns the place of the first message that err says has failed, -1 where it names none of them.
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

// blockedError says that a message must be set aside, and Config.OnFailure says that none may.
type blockedError struct{ *verdict }

func (e *blockedError) Error() string { return fmt.Sprintf("%s: %v", e.reason, e.err) }
func (e *blockedError) Unwrap() error { return e.err }

// HaltReason is why a partition stands still.
type HaltReason string

// Reasons.
const (
	HaltForeignGroup   HaltReason = "foreign-group"   // the cursor belongs to another Kafka group
	HaltForeignCluster HaltReason = "foreign-cluster" // the cursor belongs to another Kafka cluster
	HaltNewTopic       HaltReason = "new-topic"       // the topic was deleted and created again
	HaltHistoryLost    HaltReason = "history-lost"    // Kafka says that we were here, and the database does not know
	HaltTruncated      HaltReason = "truncated"       // the log ends before the position, or holds another record there
	HaltGap            HaltReason = "gap"             // retention deleted records that were not handled
	HaltRetired        HaltReason = "retired"         // an operator retired the cursor
	HaltOtherShard     HaltReason = "other-shard"     // the partition's cursor is in another shard, or was retired there and is nowhere
	HaltNoShard        HaltReason = "no-shard"        // Shards.Of names no database for the partition
	HaltCopies         HaltReason = "copies"          // Config.Copies, or the topics without it, differ from what the scope's ids mean
	HaltBlocked        HaltReason = "blocked"         // a message cannot be applied, and none is passed over: by BlockPartition, or because the server refuses its transaction
	// HaltEverythingFails: nearly all of the last messages have failed, see Brake. It ends by itself when a message is applied.
	HaltEverythingFails HaltReason = "everything-fails"
)

// HaltError says that a partition cannot go on by itself without a chance of losing or repeating messages, and which
// command resolves it. Other partitions go on; this one looks again every few seconds.
type HaltError struct {
	Scope     string
	Group     string // that this process is a member of
	Topic     string
	Partition int32
	Position  int64
	Reason    HaltReason
	Detail    string
	// Shard is the database that has the partition by Shards.Of, and Other the one that has its cursor, in a halt "other-shard". Empty: there
	// is one database.
	Shard, Other string
	// Redrive are the commands that have what was parked tried again, once the cause is mended, in a halt "everything-fails".
	Redrive []string
	// RetainedUntil is when retention by time may begin to delete the record at Position. Zero: not known, or no such time.
	RetainedUntil time.Time

	otherRetired bool // Other's cursor is retired
	otherAhead   bool // and stands ahead of the one in Shard
}

func (e *HaltError) Error() string {
	kept := ""
	if !e.RetainedUntil.IsZero() {
		kept = fmt.Sprintf("; retention may delete it from %s on", e.RetainedUntil.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("partition %s/%d halted at offset %d (%s): %s%s; %s", e.Topic, e.Partition, e.Position, e.Reason, e.Detail, kept, e.resolve())
}

// attributes are what is logged of the halt; what it has not is left out.
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

// resolve says what to do, with the command.
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
			resolve = fmt.Sprintf("it was taken over from the wrong database: %s, and then %s", e.Command(), e.command("adopt", e.Shard, "-from", quote("URL-OF-"+e.Other)))
		}
	}
	return resolve
}

// Command is the command that resolves the halt, for a POSIX shell, the first one where it takes two; "" where none does (no-shard, copies). The operator fills in OFFSET, where
// the halt leaves a choice, WHY, and URL-OF-NAME, the address of shard NAME. That of a foreign-group is refused while the other group has not let the cursor go.
func (e *HaltError) Command() string {
	switch {
	case e.Reason == HaltNoShard, e.Reason == HaltCopies:
		return ""
	case e.Reason == HaltOtherShard && e.otherAhead:
		return e.command("retire", e.Shard)
	case e.Reason == HaltOtherShard && !e.otherRetired:
		return e.command("retire", e.Other)
	case e.Reason == HaltOtherShard:
		return e.command("adopt", e.Shard, "-from", quote("URL-OF-"+e.Other))
	case e.Reason == HaltForeignGroup:
		return e.command("adopt", e.Shard, "-group", quote(e.Group)) // by name: otherwise the old group, if it lives, may be faster
	}
	if e.Reason == HaltEverythingFails {
		return e.command("adopt", e.Shard, "-at", strconv.FormatInt(e.Position, 10))
	}
	return e.command("adopt", e.Shard, "-at", "OFFSET")
}

// redrive is the command that has what was parked of the partition tried again.
func (e *HaltError) redrive(kind, reason string) string {
	return e.write([]string{"parked", "redrive"}, e.Shard, "-kind", kind, "-parked-reason", reason, "-limit", "10000")
}

// command is a command about the halted cursor, in a shard.
func (e *HaltError) command(verb, shard string, more ...string) string {
	return e.write([]string{"cursor", verb}, shard, more...)
}

func (e *HaltError) write(verb []string, shard string, more ...string) string {
	args := append([]string{"onlyonce"}, verb...)
	if shard != "" {
		args = append(args, "-postgres", quote("URL-OF-"+shard))
	}
	args = append(args, "-scope", quote(e.Scope), "-topic", quote(e.Topic), "-partition", strconv.Itoa(int(e.Partition)))
	return strings.Join(append(append(args, more...), "-reason", "WHY"), " ")
}

// quote makes a word for a POSIX shell.
func quote(s string) string {
	plain := func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_./:", r))
	}
	if s != "" && strings.IndexFunc(s, plain) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// errMoved says that the position is mine and somewhere else than this process thought: an operator set it, or an
// earlier attempt with an unknown outcome turns out to have committed. Go on from the database's position.
var errMoved = errors.New("the position was moved")

// sqlState returns the SQLSTATE of a failure, "" where there is none or the server sent none.
func sqlState(failed *guard.Failure) string {
	if failed == nil {
		return ""
	}
	return guard.SQLState(failed.Err)
}
