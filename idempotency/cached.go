package idempotency

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// sightSQL finds a record as lookSQL does, and says in which history of the database, and when: for a cache (H21). In: id. Out: one row; its
// record is null where there is none. Functions of the control file cost some microseconds, so only who has a cache asks them.
const sightSQL = `
select c.system_identifier, substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), clock_timestamp(), r.*
  from pg_control_system() c left join (` + lookSQL + `) r on true`

// puts bounds how many records are on their way to the cache at once; those beyond are put another time.
const puts = 64

// sight is look for a layer with a cache.
func (l *Layer) sight(ctx context.Context, id [16]byte) (*record, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.AcquireTimeout)
	defer cancel()
	asked := time.Now()
	var o origin
	var timeline string
	var clock time.Time
	row := recordRow{}
	err := l.pool.QueryRow(ctx, sightSQL, uuid.UUID(id)).Scan(append([]any{&o.System, &timeline, &clock}, row.targets()...)...)
	if err != nil {
		return nil, fmt.Errorf("idempotency: looking up a record: %w", err)
	}
	n, err := strconv.ParseUint(timeline, 16, 32)
	if err != nil {
		return nil, fmt.Errorf("idempotency: timeline %q: %w", timeline, err)
	}
	o.Timeline = uint32(n)
	l.cache.saw(o, clock, asked)
	r := row.record()
	if r != nil {
		r.origin = o
	}
	return r, nil
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
	same, err := x.layer.print.matches(c.Fingerprint, &x.subject)
	if err != nil {
		return reply{}, false
	}
	if !same {
		return refusal(codeKeyReused, nil), true
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
		l.cache.put(ctx, id, &cached{Origin: r.origin, Expires: *r.expires, Fingerprint: r.fingerprint, Response: resp}, func(ctx context.Context) (bool, error) {
			now, err := l.look(ctx, id)
			return err == nil && now != nil && now.token == r.token && !now.erased, err
		})
	}(context.WithoutCancel(x.ctx), x.id)
}
