package eventsource

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// Event is one event to append.
type Event struct {
	// Topic is the stream. Required.
	Topic string
	// Tenant and ID name the event. The appender claims the id before, in the same transaction, and
	// consumers rely on its being unique. ID is required; at most 1,024 bytes.
	Tenant, ID string
	// Key is what the event is about, for example an order: events of one key are read in the order
	// of their commits. Defaults to none.
	Key     []byte
	Headers []consumer.Header
	Body    []byte

	// Partition is the event's partition: below the stream's number of them. Defaults to nil: its
	// key decides, or its id.
	Partition *int16
}

// Errors.
var (
	// ErrEvent is wrapped by every error about an event that cannot be appended as it is.
	ErrEvent = errors.New("eventsource: bad event")
	// ErrNoStream means that there is no stream of that name.
	ErrNoStream = errors.New("eventsource: there is no such stream")
)

const (
	maxID         = 1024
	maxPartitions = 1024
	codeNoStream  = "OO009"
)

var validTopic = regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)

// appendSQL appends events; see the function's comment in the migration. In: arrays of one length,
// except for those of the headers.
const appendSQL = `
select onlyonce.append_events(
  topics => $1,
  parts => $2,
  tenants => $3,
  ids => $4,
  order_keys => $5,
  header_ends => $6,
  header_names => $7,
  header_values => $8,
  bodies => $9
)`

// makeStreamSQL makes a stream if there is none. In: topic, partitions. Out: one row: how many
// partitions it has. No row if another session made it after this statement began.
const makeStreamSQL = `
with made as (insert into onlyonce.streams (topic, partitions)
                values ($1, $2) on conflict (topic) do nothing returning partitions)
select partitions from made union all select partitions from onlyonce.streams where topic = $1 limit 1`

// DB is what MakeStream needs: *pgxpool.Pool and *pgx.Conn implement it.
type DB interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// MakeStream makes a stream. If one of that name exists, it keeps its number of partitions, which
// has reports. Idempotent.
func MakeStream(ctx context.Context, db DB, topic string, partitions int) (has int, err error) {
	switch {
	case !validTopic.MatchString(topic):
		return 0, fmt.Errorf("%w: topic %q: must be 1 to 249 of A-Z a-z 0-9 . _ -", ErrConfig, topic)
	case partitions < 1 || partitions > maxPartitions:
		return 0, fmt.Errorf("%w: partitions: is %d: must be from 1 to %d", ErrConfig, partitions, maxPartitions)
	}
	for range 2 {
		if err = db.QueryRow(ctx, makeStreamSQL, topic, partitions).Scan(&has); !errors.Is(err, pgx.ErrNoRows) {
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("eventsource: making stream %s: %w", topic, err)
	}
	return has, nil
}

// beforeCommitTx is implemented by a guarded transaction.
type beforeCommitTx interface {
	BeforeCommit(item any, write func(items []any) (sql string, args []any)) error
}

// Append appends events in the caller's transaction: consumers read them after its COMMIT. It locks
// their partitions until the transaction ends, so call it last; in a guarded transaction
// (internal/guard) that is done for you. If it fails with SQLSTATE 40001 or 40P01, run the
// transaction again.
func Append(ctx context.Context, tx dedupe.AnyTx, events ...Event) error {
	var faults []error
	items := make([]any, len(events))
	for i, e := range events {
		fault := func(field, rule string, args ...any) {
			faults = append(faults, fmt.Errorf("%w: event %d: %s: %s", ErrEvent, i, field, fmt.Sprintf(rule, args...)))
		}
		if e.Topic == "" {
			fault("Topic", "must not be empty")
		}
		if e.ID == "" || len(e.ID) > maxID || !isStorable(e.ID) {
			fault("ID", "must be 1 to %d bytes of UTF-8 without NUL", maxID)
		}
		if !isStorable(e.Tenant) {
			fault("Tenant", "must be UTF-8 without NUL")
		}
		for _, h := range e.Headers {
			if !isStorable(h.Name) {
				fault("Headers", "a name must be UTF-8 without NUL")
			}
		}
		items[i] = &events[i]
	}
	if err := errors.Join(faults...); err != nil || len(events) == 0 {
		return err
	}
	if late, ok := tx.(beforeCommitTx); ok {
		for _, e := range items {
			if err := late.BeforeCommit(e, appendStatement); err != nil {
				return err
			}
		}
		return nil
	}
	sql, args := appendStatement(items)
	if _, err := tx.Exec(ctx, sql, args...); err != nil {
		if guard.SQLState(err) == codeNoStream {
			return fmt.Errorf("%w: %w", ErrNoStream, err)
		}
		return fmt.Errorf("eventsource: append: %w", err)
	}
	return nil
}

func isStorable(s string) bool {
	for i := range len(s) {
		if s[i] == 0 {
			return false
		}
	}
	return utf8.ValidString(s)
}

// appendStatement appends events, which are *Event.
func appendStatement(items []any) (sql string, args []any) {
	n := len(items)
	at := func(i int) *Event { return items[i].(*Event) }
	text := func(field func(*Event) string) any {
		return codec.Array(n, func(i int) pgtype.Text { return pgtype.Text{String: field(at(i)), Valid: true} })
	}
	keys := make([][]byte, n)
	bodies := make([][]byte, n)
	var ends []pgtype.Int4
	var names []pgtype.Text
	values := [][]byte{}
	for i := range n {
		keys[i], bodies[i] = at(i).Key, at(i).Body
		for _, h := range at(i).Headers {
			names = append(names, pgtype.Text{String: h.Name, Valid: true})
			values = append(values, h.Value)
		}
		ends = append(ends, pgtype.Int4{Int32: int32(len(names)), Valid: true})
	}
	return appendSQL, []any{
		text(func(e *Event) string { return e.Topic }),
		codec.Array(n, func(i int) (p pgtype.Int2) {
			if at(i).Partition != nil {
				p = pgtype.Int2{Int16: *at(i).Partition, Valid: true}
			}
			return p
		}),
		text(func(e *Event) string { return e.Tenant }), text(func(e *Event) string { return e.ID }), keys,
		codec.Array(n, func(i int) pgtype.Int4 { return ends[i] }),
		codec.Array(len(names), func(i int) pgtype.Text { return names[i] }), values, bodies,
	}
}
