package consumer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/guard"
)

// SQLSTATEs of the schema onlyonce.
const (
	codeFenceLost   = "OO001" // another owner, or another transaction, moved the position
	codeRaceLost    = "23505" // at the fence: another transaction from the same position committed meanwhile
	codeKeyNotFresh = "23505" // at the claim: a key of the optimistic claim is not new
)

// SQLSTATEs of PostgreSQL (Appendix A) that are no fault of the message: the transaction is run again.
const (
	codeSerialization = "40001"
	codeDeadlock      = "40P01"
	codeLockTimeout   = "55P03"
	classResources    = "53" // insufficient resources
)

// Permanent marks an error that no retry will mend: the message is parked at once. Nil stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

func isPermanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p)
}

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
}

func (e *HaltError) Error() string {
	return fmt.Sprintf("partition %s/%d halted at offset %d (%s): %s; to resolve it: %s",
		e.Topic, e.Partition, e.Position, e.Reason, e.Detail, e.Command())
}

// Command is the command that resolves the halt, for a POSIX shell. The operator fills in OFFSET, where the halt leaves a
// choice, and WHY.
func (e *HaltError) Command() string {
	args := []string{"onlyonce", "cursor", "adopt", "-scope", quote(e.Scope), "-topic", quote(e.Topic), "-partition", strconv.Itoa(int(e.Partition))}
	if e.Reason == HaltForeignGroup {
		args = append(args, "-group", quote(e.Group)) // by name: otherwise the old group, if it lives, may be faster
	} else {
		args = append(args, "-at", "OFFSET")
	}
	return strings.Join(append(args, "-reason", "WHY"), " ")
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
	err := failed.Err
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
