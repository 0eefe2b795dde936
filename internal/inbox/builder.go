package inbox

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// missingFiltersSQL reads which closed segments have no filter, or not all parts of one. In: ring.
// Out: a row each: slot, use, number of parts (null: not begun), which of them are there. By
// primary keys.
const missingFiltersSQL = `
select c.slot, r.uses[c.slot + 1], f.parts, f.built
  from onlyonce.rings r cross join lateral unnest(r.closed) as c(slot)
  left join lateral (
    select f.parts, array_agg(f.part) as built, count(*) = f.parts as whole from onlyonce.filters f
     where f.ring = r.name and f.use = r.uses[c.slot + 1]
     group by f.parts order by count(*) = f.parts desc, f.parts limit 1) f on true
 where r.name = $1 and r.uses[c.slot + 1] is not null and f.whole is not true
 order by c.slot`

// stillClosedSQL reads whether a segment is still the one that was closed in a use. In: ring, slot,
// use. While the table is locked, the answer does not change.
const stillClosedSQL = `
select exists (select from onlyonce.rings
                where name = $1 and $2::smallint = any (closed) and uses[$2::smallint + 1] = $3)`

// keyCountSQL estimates how many keys a segment holds, by the size of a row. In: the table.
const keyCountSQL = `select pg_relation_size($1::text::regclass) / 52`

// MaxPartKeys is about how many keys a part of a filter covers. Building a part takes 42 bytes for
// each key of this process's memory, and one read of the segment.
const MaxPartKeys = 8_000_000

// maxParts is 256 because one byte of a key decides its part.
const maxParts = 256

// partSQL reads the keys of a part, as partOf computes it. The table, parts, part. Without an
// index: the whole segment is read.
const partSQL = `copy (select key from %s where get_byte(uuid_send(key), 15) * %d >> 8 = %d) to stdout (format binary)`

// storeSQL stores a part, unless another builder has stored it. In: ring, use, parts, part, keys,
// digest, filter.
const storeSQL = `
insert into onlyonce.filters (
  ring,
  use,
  parts,
  part,
  keys,
  digest,
  filter
) values (
  $1,
  $2,
  $3,
  $4,
  $5,
  $6,
  $7
) on conflict do nothing`

// deleteUnusedSQL deletes filters of segments that are not closed any more. In: ring.
const deleteUnusedSQL = `
delete from onlyonce.filters f
 where f.ring = $1
   and not exists (select from onlyonce.rings r
                    cross join lateral unnest(r.closed) as c(slot)
                    where r.name = f.ring and r.uses[c.slot + 1] = f.use)`

// Builder builds the filters of a ring's closed segments, under a lease. It must be used by one
// goroutine.
type Builder struct {
	pool  *primary.Pool
	ring  ring.Ring
	log   *slog.Logger
	lease *lease.Lease
	// waits maps each use to a transaction id that was taken after the segment was found closed in
	// it.
	waits       map[int64]string
	maxPartKeys int64          // keys in a part
	tooLarge    map[int64]bool // the uses of segments that were reported as too large for a filter
}

// buildTimeout bounds the building of a filter. The parts that were built by then are kept.
const buildTimeout = 15 * time.Minute

// NewBuilder returns a builder.
func NewBuilder(pool *pgxpool.Pool, which ring.Ring, log *slog.Logger) *Builder {
	return &Builder{
		pool: primary.Of(pool, log).Pinned(), ring: which, log: log,
		waits: map[int64]string{}, tooLarge: map[int64]bool{}, maxPartKeys: MaxPartKeys,
	}
}

// Run builds until ctx ends. The first look is after one interval.
func (b *Builder) Run(ctx context.Context) {
	every, _ := intervalOf(b.ring)
	tick := time.NewTicker(every)
	defer tick.Stop()
	defer func() {
		if b.lease != nil {
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), interval)
			defer cancel()
			_ = b.lease.Release(bounded, b.pool) // otherwise it ends by itself
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		_, err := b.Step(ctx)
		switch {
		case err == nil, ctx.Err() != nil:
		case guard.SQLState(err) == insufficientPrivilege:
			ring.LogNotRotating(ctx, b.log)
			if !pace.Sleep(ctx, rightsRecheck) {
				return
			}
		default:
			b.log.Warn("onlyonce: building a filter of the inbox failed", "ring", b.ring.Name, "error", err)
		}
	}
}

// missingFilters is a closed segment some of whose filters are not built.
type missingFilters struct {
	Slot  int16
	Use   int64
	Parts *int // into which it is divided; nil: not divided yet
	Built []int16
}

// Step builds the filters that can be built now, part by part, and returns how many were completed.
// It continues what another builder has left. It does not wait for transactions.
func (b *Builder) Step(ctx context.Context) (built int, err error) {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	if owner, err := b.holdLease(ctx); !owner || err != nil {
		return 0, err
	}
	rows, err := b.pool.Query(ctx, missingFiltersSQL, b.ring.Name)
	if err != nil {
		return 0, err
	}
	missing, err := pgx.CollectRows(rows, pgx.RowToStructByPos[missingFilters])
	if err != nil {
		return 0, err
	}
	filtered := func(use int64) bool {
		return !slices.ContainsFunc(missing, func(s missingFilters) bool { return s.Use == use })
	}
	maps.DeleteFunc(b.waits, func(use int64, _ string) bool { return filtered(use) })
	maps.DeleteFunc(b.tooLarge, func(use int64, _ bool) bool { return filtered(use) })
	var failed []error
	for _, s := range missing {
		if ready, err := b.ready(ctx, &s); err != nil {
			return built, err
		} else if !ready {
			continue
		}
		owner, fault, err := b.buildParts(ctx, s)
		switch {
		case !owner || err != nil:
			return built, err
		case fault != nil:
			failed = append(failed, fault) // one failure must not stop the others
		default:
			built++
		}
	}
	_, err = b.pool.Exec(ctx, deleteUnusedSQL, b.ring.Name)
	return built, errors.Join(append(failed, err)...)
}

// ready reports whether filters of a segment can be built: no transaction inserts into it any more,
// and it is not too large. It divides the segment into parts.
func (b *Builder) ready(ctx context.Context, s *missingFilters) (bool, error) {
	// K5: a transaction that has read the ring before the close may still insert into the segment.
	if b.waits[s.Use] == "" {
		xid, err := ring.OwnXid(ctx, b.pool)
		if err != nil {
			return false, err
		}
		b.waits[s.Use] = xid
	}
	if passed, err := ring.XidPassed(ctx, b.pool, b.waits[s.Use]); err != nil || !passed || s.Parts != nil {
		return passed, err
	}
	var keys int64
	if err := b.pool.QueryRow(ctx, keyCountSQL, b.ring.Tables[s.Slot]).Scan(&keys); err != nil {
		return false, err
	}
	parts := int(max((keys+b.maxPartKeys-1)/b.maxPartKeys, 1))
	s.Parts = &parts
	if parts <= maxParts {
		return true, nil
	}
	if !b.tooLarge[s.Use] {
		b.tooLarge[s.Use] = true
		b.log.Warn("onlyonce: a segment of the inbox is too large for a filter, and is queried by SQL: see "+
			"onlyonce inbox plan", "ring", b.ring.Name, "slot", s.Slot, "keys", keys)
	}
	return false, nil
}

// buildParts builds the filters of a segment that are missing, as long as this builder holds the
// lease. fault is why one cannot be built.
func (b *Builder) buildParts(ctx context.Context, s missingFilters) (owner bool, fault, err error) {
	for part := range *s.Parts {
		if slices.Contains(s.Built, int16(part)) { //nolint:gosec // below 256
			continue
		}
		if owner, err := b.holdLease(ctx); !owner || err != nil {
			return false, nil, err
		}
		if err := b.buildPart(ctx, s.Slot, s.Use, *s.Parts, part); err != nil {
			return true, err, nil
		}
	}
	return true, nil, nil
}

// holdLease takes the lease, or renews it. Two builders at once would do the work twice, without
// harm.
func (b *Builder) holdLease(ctx context.Context) (bool, error) {
	_, ttl := intervalOf(b.ring)
	if b.lease != nil {
		ours, err := b.lease.Renew(ctx, b.pool, ttl)
		if err != nil || ours {
			return ours, err
		}
		b.lease = nil
		clear(b.waits)
	}
	l, err := lease.Acquire(ctx, b.pool, names.Builder(b.ring.Name), ttl)
	b.lease = l
	return l != nil, err
}

var errReused = errors.New("the segment is closed no more")

// buildPart reads a part of a segment and stores its filter.
func (b *Builder) buildPart(ctx context.Context, slot int16, use int64, parts, part int) error {
	var words copyParser
	err := b.pool.InTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		// It reads a whole segment; ctx bounds it.
		if _, err := tx.Exec(ctx, `set local statement_timeout = 0`); err != nil {
			return err
		}
		// From here on the segment is not emptied. A later statement checks whether it was before.
		if _, err := tx.Exec(ctx, `lock table `+b.ring.Tables[slot]+` in access share mode`); err != nil {
			return err
		}
		var still bool
		if err := tx.QueryRow(ctx, stillClosedSQL, b.ring.Name, slot, use).Scan(&still); err != nil {
			return err
		}
		if !still {
			return errReused
		}
		_, err := tx.Conn().PgConn().CopyTo(ctx, &words, fmt.Sprintf(partSQL, b.ring.Tables[slot], parts, part))
		return err
	})
	if errors.Is(err, errReused) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading segment %s: %w", b.ring.Tables[slot], err)
	}
	if err := words.checkComplete(); err != nil {
		return fmt.Errorf("reading segment %s: %w", b.ring.Tables[slot], err)
	}
	f, err := newFilter(words.words)
	if err != nil {
		return err
	}
	stored, digest := f.encode()
	if _, err := b.pool.Exec(ctx, storeSQL, b.ring.Name, use, parts, part, f.keys, digest, stored); err != nil {
		return fmt.Errorf("storing the filter of segment %s: %w", b.ring.Tables[slot], err)
	}
	b.log.Info("onlyonce: filter of the inbox built",
		"ring", b.ring.Name, "slot", slot, "part", part, "parts", parts, "keys", f.keys, "bytes", f.bytes())
	return nil
}

// copyParser reads COPY's binary form of one column of keys (PostgreSQL documentation, "COPY",
// "Binary Format"). It begins with a header of 19 bytes without extension. Then each row has its
// number of fields, 1, and the length, 16, before the key. At the end comes -1.
type copyParser struct {
	words  []uint64
	rest   []byte
	headed bool
	ended  bool
	broken bool
}

const (
	copyHeader = 19
	copyRow    = 2 + 4 + 16
)

func (c *copyParser) Write(p []byte) (int, error) {
	c.rest = append(c.rest, p...)
	at := c.rest
	if !c.headed && len(at) >= copyHeader {
		c.headed = true
		at = at[copyHeader:]
	}
	for c.headed && len(at) >= 2 {
		if c.ended || c.broken {
			break
		}
		switch fields := int16(binary.BigEndian.Uint16(at)); {
		case fields == -1:
			c.ended = true
			at = at[2:]
			continue
		case fields != 1:
			c.broken = true
			continue
		}
		if len(at) < copyRow {
			break
		}
		if binary.BigEndian.Uint32(at[2:]) != 16 {
			c.broken = true
			break
		}
		c.words = append(c.words, keyWord(at[6:copyRow]))
		at = at[copyRow:]
	}
	c.rest = append(c.rest[:0], at...)
	return len(p), nil
}

// checkComplete returns an error unless all rows were read.
func (c *copyParser) checkComplete() error {
	if !c.ended || c.broken || len(c.rest) > 0 {
		return fmt.Errorf("COPY did not send what was expected behind %d keys", len(c.words))
	}
	return nil
}
