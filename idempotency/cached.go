package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// lookFromSQL finds a record as lookSQL does, and says which history the server is in, and its clock. In: id. Out: one row; its record is null
// where there is none. pg_control_checkpoint() has a timeline too, and lags behind a promotion. On a standby pg_current_wal_insert_lsn raises 55000:
// nothing is committed there.
const lookFromSQL = `
select c.system_identifier, ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint, clock_timestamp(), r.*
  from pg_control_system() c left join (` + lookSQL + `) r on true`

// puts bounds how many records are on their way to the cache at once; those beyond are put another time.
const puts = 64

// lookFrom is look for a layer with a cache.
func (l *Layer) lookFrom(ctx context.Context, id [16]byte) (*record, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.AcquireTimeout)
	defer cancel()
	asked := time.Now()
	var o history
	var clock time.Time
	row := recordRow{}
	err := l.pool.QueryRow(ctx, lookFromSQL, uuid.UUID(id)).Scan(append([]any{&o.System, &o.Timeline, &clock}, row.targets()...)...)
	if err != nil {
		return nil, fmt.Errorf("idempotency: looking up a record: %w", err)
	}
	l.cache.saw(o, clock, asked)
	r := row.record()
	if r != nil {
		r.history = o
	}
	return l.withLease(ctx, r)
}

// cached answers from the cache.
func (x *exchange) cached() (reply, bool) {
	if x.layer.cache == nil {
		return reply{}, false
	}
	c, ok := x.layer.cache.get(x.ctx, x.id)
	if !ok {
		return reply{}, false
	}
	if same, err := x.layer.print.matches(c.Fingerprint, &x.subject); err != nil || !same {
		return reply{}, false // the database says what that means
	}
	return again(c.Response, &c.Expires), true
}

// share puts a record that was read from the database into the cache, behind the answer. What was just committed is not put: it may never be asked for
// again, and which history it is in, its connection would have to be asked.
func (x *exchange) share(r *record, resp *response) {
	l := x.layer
	if l.cache == nil || r.expires == nil {
		return
	}
	select {
	case l.puts <- struct{}{}:
	default:
		return
	}
	go func(ctx context.Context, id [16]byte) {
		defer func() { <-l.puts }()
		l.cache.put(ctx, id, &cached{Origin: r.history, Expires: *r.expires, Fingerprint: r.fingerprint, Response: resp}, func(ctx context.Context) (bool, error) {
			now, err := l.look(ctx, id)
			return err == nil && now != nil && now.token == r.token && !now.erased, err
		})
	}(context.WithoutCancel(x.ctx), x.id)
}
