package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/internal/codec"
)

// findRecordAndHistorySQL is findRecordSQL for a layer with a cache: it also returns the server's
// history (system identifier and timeline) and clock. In: id. Out: one row; the record's columns
// are null if there is none.
//
// The timeline comes from the WAL position, because the one of pg_control_checkpoint() lags after a
// promotion. On a standby pg_current_wal_insert_lsn raises 55000: nothing is committed there.
const findRecordAndHistorySQL = `
select c.system_identifier, ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint, clock_timestamp(), r.*
  from pg_control_system() c left join (` + findRecordSQL + `) r on true`

// maxCachePuts bounds how many records are being put into the cache at once. Further ones are not
// put; a later copy of the request tries again.
const maxCachePuts = 64

// findRecordAndHistory is findRecord for a layer with a cache.
func (l *Layer) findRecordAndHistory(ctx context.Context, id [16]byte) (*storedRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.AcquireTimeout)
	defer cancel()
	asked := time.Now()
	var o databaseHistory
	var clock time.Time
	row := recordRow{}
	err := l.pool.QueryRow(ctx, findRecordAndHistorySQL, codec.UUID(id)).Scan(append([]any{&o.System, &o.Timeline, &clock}, row.targets()...)...)
	if err != nil {
		return nil, fmt.Errorf("idempotency: looking up a record: %w", err)
	}
	l.cache.observe(o, clock, asked)
	r := row.record()
	if r != nil {
		r.readFrom = o
	}
	return l.addLease(ctx, r)
}

// replyFromCache answers from the cache.
func (req *servedRequest) replyFromCache() (reply, bool) {
	if req.layer.cache == nil {
		return reply{}, false
	}
	c, ok := req.layer.cache.get(req.ctx, req.id)
	if !ok {
		return reply{}, false
	}
	if same, err := req.layer.fingerprints.matches(c.Fingerprint, &req.subject, req.fingerprint); err != nil || !same {
		return reply{}, false // the database decides between 422 and an error
	}
	return req.replayReply(c.Response, &c.Expires), true
}

// cacheRecord puts a record that was read from the database into the cache, after the answer. A
// record that was just committed is not put: most are never asked for again, and its connection
// would have to be asked for its timeline.
func (req *servedRequest) cacheRecord(r *storedRecord, resp *storedResponse) {
	l := req.layer
	if l.cache == nil || r.expires == nil {
		return
	}
	select {
	case l.cachePuts <- struct{}{}:
	default:
		return
	}
	go func(ctx context.Context, id [16]byte) {
		defer func() { <-l.cachePuts }()
		l.cache.put(ctx, id, &cacheEntry{Origin: r.readFrom, Expires: *r.expires, Fingerprint: r.fingerprint, Response: resp}, func(ctx context.Context) (bool, error) {
			now, err := l.findRecord(ctx, id)
			return err == nil && now != nil && now.token == r.token && !now.erased, err
		})
	}(context.WithoutCancel(req.ctx), req.id)
}
