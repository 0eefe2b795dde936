package quickstart

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/test/check"
)

// positionsSQL returns a row for each cursor of the run: partition, next offset.
const positionsSQL = `select partition, next_offset from onlyonce.positions where scope = $1`

func (d *demo) positions(ctx context.Context) (map[int32]int64, error) {
	rows, err := d.servers.Postgres.Pool.Query(ctx, positionsSQL, d.run)
	if err != nil {
		return nil, err
	}
	at := map[int32]int64{}
	var partition int32
	var next int64
	_, err = pgx.ForEachRow(rows, []any{&partition, &next}, func() error { at[partition] = next; return nil })
	return at, err
}

// effectsSQL returns one row: how many effects the run has.
const effectsSQL = `select count(*) from onlyonce_quickstart.effects where run = $1`

func (d *demo) effects(ctx context.Context) (n int, err error) {
	err = d.servers.Postgres.Pool.QueryRow(ctx, effectsSQL, d.run).Scan(&n)
	return n, err
}

// effectsByOrderSQL returns a row for each order: id, number of effects.
const effectsByOrderSQL = `select order_id, count(*) from onlyonce_quickstart.effects where run = $1 group by order_id`

// parkedSQL returns a row for each parked message of the run: key, reason.
const parkedSQL = `select key, reason from onlyonce.parked where scope = $1 and kind = 'message'`

// finalState is what a run has left behind in the database and at the payment endpoint.
type finalState struct {
	check.Facts
	reasons map[string]int // reason -> parked rows
}

// collect reads what the run has left behind: in one snapshot, so that the numbers belong together.
func (d *demo) collect(ctx context.Context) (f finalState, err error) {
	f = finalState{Facts: check.Facts{IDs: d.stream.ids, Effects: map[string]int{}, Parked: map[string]int{}}, reasons: map[string]int{}}
	byHash := make(map[uuid.UUID]string, len(d.stream.ids))
	for _, id := range d.stream.ids {
		byHash[d.key(id)] = id
	}
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, d.servers.Postgres.Pool, options, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, effectsByOrderSQL, d.run)
		if err != nil {
			return err
		}
		var text string
		var n int
		if _, err = pgx.ForEachRow(rows, []any{&text, &n}, func() error { f.Effects[text] = n; return nil }); err != nil {
			return err
		}
		if rows, err = tx.Query(ctx, parkedSQL, d.run); err != nil {
			return err
		}
		var key uuid.NullUUID
		_, err = pgx.ForEachRow(rows, []any{&key, &text}, func() error {
			id, known := byHash[key.UUID]
			if !known {
				id = "unknown key " + key.UUID.String()
			}
			f.Parked[id]++
			f.reasons[text]++
			return nil
		})
		return err
	})
	if err != nil {
		return f, err
	}
	f.Charged, f.Changed = d.payments.ByReference()
	return f, nil
}

// key is the form of a message id in onlyonce's tables.
func (d *demo) key(id string) uuid.UUID {
	return uuid.UUID(dedupe.Key{Scope: d.run, ID: id, Fingerprint: dedupe.NoFingerprint}.Hash())
}

// tidySQL removes the rows of a run, but for its keys. $1 is the run.
var tidySQL = []string{
	`delete from onlyonce_quickstart.effects where run = $1`,
	`delete from onlyonce.batches where sink = $1`,
	`delete from onlyonce.parked where scope = $1`,
	`delete from onlyonce.progress where cursor_id in (select id from onlyonce.cursors where scope = $1)`,
	`
delete from onlyonce.leases
 where (starts_with(name, 'relay/' || $1 || '/')
        or starts_with(name, 'relays/' || $1 || '/')
        or id in (select id from onlyonce.cursors where scope = $1))`,
	`delete from onlyonce.scopes where scope = $1`,
	`delete from onlyonce.sinks where name = $1`,
}

// tidyKeysSQL removes keys. $1 uuid[].
const tidyKeysSQL = `delete from onlyonce.inbox where key = any($1)`

// cleanUp removes all that the run has left in the user's own database.
func (d *demo) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return pgx.BeginFunc(ctx, d.servers.Postgres.Pool, func(tx pgx.Tx) error {
		for _, sql := range tidySQL {
			if _, err := tx.Exec(ctx, sql, d.run); err != nil {
				return err
			}
		}
		keys := make([]uuid.UUID, len(d.stream.ids))
		for i, id := range d.stream.ids {
			keys[i] = d.key(id)
		}
		_, err := tx.Exec(ctx, tidyKeysSQL, keys)
		return err
	})
}
