package inbox

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// listSQL lists the filters of closed segments whose parts are all there. In: ring. Out: a row
// each: use, keys and digest of each part. If a segment was divided in two ways, the one with fewer
// parts counts. By primary keys.
const listSQL = `
select distinct on (f.use) f.use, array_agg(f.keys order by f.part), array_agg(f.digest order by f.part)
  from onlyonce.rings r
 cross join lateral unnest(r.closed) as c(slot)
  join onlyonce.filters f on f.ring = r.name and f.use = r.uses[c.slot + 1]
 where r.name = $1 group by f.use, f.parts having count(*) = f.parts order by f.use, f.parts`

// loadSQL reads a part. In: ring, use, parts, part. Out: at most one row. By the primary key.
const loadSQL = `select filter from onlyonce.filters where ring = $1 and use = $2 and parts = $3 and part = $4`

// Filters holds the filters of a ring's closed segments that this process has loaded. A claim names
// the uses whose filters it asked. The server looks into the segments of other uses by itself, so a
// filter that is missing here costs only time.
type Filters struct {
	// Timeout bounds each statement. Set it before Run. Defaults to 30 s.
	Timeout time.Duration

	pool     *pgxpool.Pool
	ring     string
	log      *slog.Logger
	segments atomic.Pointer[[]segmentFilter]
}

type segmentFilter struct {
	use   int64
	parts []*filter
}

func (l *segmentFilter) mayHold(word uint64) bool {
	return l.parts[partOf(word, len(l.parts))].mayHold(word)
}

// size is how many keys the parts hold, and how much memory they take.
func (l *segmentFilter) size() (keys, bytes int64) {
	for _, p := range l.parts {
		keys, bytes = keys+p.keys, bytes+p.bytes()
	}
	return keys, bytes
}

// NewFilters returns the filters of a ring, with none loaded.
func NewFilters(pool *pgxpool.Pool, ring string, log *slog.Logger) *Filters {
	return &Filters{Timeout: answerTimeout, pool: pool, ring: ring, log: log}
}

// Run loads filters now, and as segments are closed, until ctx ends.
func (f *Filters) Run(ctx context.Context) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := f.Load(ctx); err != nil && ctx.Err() == nil {
			f.log.Warn("onlyonce: filters of the inbox were not loaded: segments are queried by SQL instead",
				"ring", f.ring, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Load loads filters that are not loaded yet, and drops those of segments that are not closed any
// more. A filter that cannot be read is left out.
func (f *Filters) Load(ctx context.Context) error {
	list, err := f.listFilters(ctx)
	if err != nil {
		return err
	}
	var before, now []segmentFilter
	if p := f.segments.Load(); p != nil {
		before = *p
	}
	var failed error
	for _, e := range list {
		if i := slices.IndexFunc(before, func(l segmentFilter) bool { return l.use == e.Use }); i >= 0 {
			now = append(now, before[i])
			continue
		}
		one := segmentFilter{use: e.Use}
		for part := range e.Keys {
			var p *filter
			p, err = f.loadPart(ctx, e, part)
			if err != nil {
				failed = fmt.Errorf("filter of use %d, part %d of %d: %w", e.Use, part, len(e.Keys), err)
				break
			}
			one.parts = append(one.parts, p)
		}
		if err == nil {
			now = append(now, one)
			keys, bytes := one.size()
			f.log.Info("onlyonce: filter of the inbox loaded", "ring", f.ring, "keys", keys, "bytes", bytes)
		}
	}
	f.segments.Store(&now)
	return failed
}

// filterRow is a row of listSQL.
type filterRow struct {
	Use     int64
	Keys    []int64
	Digests [][]byte
}

func (f *Filters) listFilters(ctx context.Context) ([]filterRow, error) {
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	rows, err := f.pool.Query(ctx, listSQL, f.ring)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[filterRow])
}

func (f *Filters) loadPart(ctx context.Context, e filterRow, part int) (*filter, error) {
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	var stored []byte
	if err := f.pool.QueryRow(ctx, loadSQL, f.ring, e.Use, len(e.Keys), part).Scan(&stored); err != nil {
		return nil, err
	}
	return decode(stored, e.Digests[part], e.Keys[part])
}

// Bytes returns how much memory the loaded filters take, and how many segments they cover.
func (f *Filters) Bytes() (bytes int64, segments int) {
	p := f.segments.Load()
	if p == nil {
		return 0, 0
	}
	for _, l := range *p {
		_, size := l.size()
		bytes += size
	}
	return bytes, len(*p)
}

// Ask asks all loaded filters for keys. asked holds their uses. hits holds the keys that a filter
// could not exclude, and hitUses which filter that was.
func (f *Filters) Ask(keys [][16]byte) (asked, hitUses []int64, hits [][16]byte) {
	p := f.segments.Load()
	if p == nil || len(*p) == 0 {
		return nil, nil, nil
	}
	asked = make([]int64, len(*p))
	for i, l := range *p {
		asked[i] = l.use
		for _, k := range keys {
			if l.mayHold(keyWord(k[:])) {
				hitUses = append(hitUses, l.use)
				hits = append(hits, k)
			}
		}
	}
	return asked, hitUses, hits
}
