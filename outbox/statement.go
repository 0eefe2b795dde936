package outbox

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/codec"
)

// statement is SQL whose parameters have names (@name). It is translated once: pgx.NamedArgs would
// translate it at each use, which takes 50 us for the longest one here.
type statement struct {
	sql   string
	names []string // of $1, $2, ...
}

var parameter = regexp.MustCompile(`@\w+`)

func newStatement(sql string) *statement {
	s := &statement{}
	s.sql = parameter.ReplaceAllStringFunc(sql, func(name string) string {
		i := slices.Index(s.names, name[1:])
		if i < 0 {
			i = len(s.names)
			s.names = append(s.names, name[1:])
		}
		return fmt.Sprintf("$%d", i+1)
	})
	return s
}

// queue queues the statement.
func (s *statement) queue(b *pgx.Batch, args pgx.NamedArgs) *pgx.QueuedQuery {
	return b.Queue(s.sql, s.args(args)...)
}

// args returns arguments in their order. It panics if one is missing.
func (s *statement) args(named pgx.NamedArgs) []any {
	args := make([]any, len(s.names))
	for i, name := range s.names {
		v, there := named[name]
		if !there {
			panic("outbox: a statement without @" + name)
		}
		args[i] = v
	}
	return args
}

// collect appends rows to what dst points to.
func collect[T any](dst *[]T, scan pgx.RowToFunc[T]) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		all, err := pgx.AppendRows(*dst, rows, scan)
		*dst = all
		return err
	}
}

// fromMicros converts microseconds. It returns at most 292 years, so that a time in the year 9999
// does not overflow into the past.
func fromMicros(n int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(min(max(n, -most), most)) * time.Microsecond
}

// ignoreTag is for statements whose number of rows does not matter. An error ends the batch before
// it is called.
func ignoreTag(pgconn.CommandTag) error { return nil }

func pgUUIDs(keys []uuid.UUID) []pgtype.UUID {
	all := make([]pgtype.UUID, len(keys))
	for i, k := range keys {
		all[i] = codec.UUID(k)
	}
	return all
}
