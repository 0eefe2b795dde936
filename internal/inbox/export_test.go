package inbox

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// Divide makes filters be divided into parts of that many keys.
func (b *Builder) Divide(keys int64) { b.maxPartKeys = keys }

// Watch is watch.
var Watch = watchHorizons

// Looks counts the queries of a DB.
type Looks struct {
	DB
	N atomic.Int64
}

// Counted returns a DB that counts.
func Counted(db DB) *Looks { return &Looks{DB: db} }

// QueryRow implements DB.
func (l *Looks) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	defer l.N.Add(1)
	return l.DB.QueryRow(ctx, sql, args...)
}
