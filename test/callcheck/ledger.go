package callcheck

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/outbox"
)

// TablesSQL makes the tables that producers keep besides the outbox: several statements. A row of
// calls commits with the call that it describes. seqs numbers the calls of an ordering key in the
// order of their commits, because its row is locked until then.
const TablesSQL = `
create schema storm;
create table storm.calls (
  id text primary key,
  tx text not null,
  sink text not null,
  key text not null,
  seq bigint not null,
  fate text not null
);
create index on storm.calls (tx);
create table storm.seqs (sink text, key text, n bigint not null default 0, primary key (sink, key))`

const (
	nextSQL = `
insert into storm.seqs as s values ($1, $2, 1) on conflict (sink, key) do update set n = s.n + 1 returning n`
	ledgerSQL = `
insert into storm.calls (
  id,
  tx,
  sink,
  key,
  seq,
  fate
)
select * from unnest(
  $1::text[],
  $2::text[],
  $3::text[],
  $4::text[],
  $5::bigint[],
  $6::text[]
)`
)

// Scope is who enqueues.
const Scope = "storm"

// Planned is a call to be written.
type Planned struct {
	Body
	NotBefore time.Time
}

// after says when the calls of an ordering key are numbered. Before they are enqueued, the number
// is in their bodies. After, only the lock that Enqueue has taken keeps their numbers, and their
// ids in the log, in the order of the commits. All calls of a key are numbered in one way, so that
// two transactions do not wait for each other.
func after(key string) bool { return key != "" && key[len(key)-1]%2 == 1 }

// Write numbers calls, records them in the ledger and enqueues them, all in tx. id names the
// transaction, and those of its calls that have no id of their own. The rows that number them are
// locked in the order of the calls.
func Write(ctx context.Context, tx pgx.Tx, id string, planned []Planned, oneByOne bool) error {
	var ids, txs, sinks, keys, fates []string
	var seqs []int64
	var calls []outbox.Call
	for i, c := range planned {
		b := c.Body
		if b.ID == "" {
			b.ID = fmt.Sprintf("%s-%d", id, i)
		}
		if b.Key != "" && !after(b.Key) {
			if err := tx.QueryRow(ctx, nextSQL, b.Sink, b.Key).Scan(&b.Seq); err != nil {
				return err
			}
		}
		raw, err := json.Marshal(b)
		if err != nil {
			return err
		}
		ids = append(
			ids,
			b.ID,
		)
		txs = append(txs, id)
		sinks = append(sinks, b.Sink)
		keys = append(keys, b.Key)
		fates = append(fates, b.Fate)
		seqs = append(seqs, b.Seq)
		calls = append(calls, outbox.Call{
			Tenant:      tenantOf(b.Key),
			Sink:        b.Sink,
			Name:        "note",
			Scope:       Scope,
			ID:          b.ID,
			OrderingKey: b.Key,
			Target:      "/" + b.ID,
			Body:        raw,
			NotBefore:   c.NotBefore,
			Header:      map[string][]string{"Content-Type": {"application/json"}, "X-Storm": {b.ID}},
		})
	}
	if err := enqueue(ctx, tx, calls, oneByOne); err != nil {
		return err
	}
	for i, key := range keys {
		if after(key) {
			if err := tx.QueryRow(ctx, nextSQL, sinks[i], key).Scan(&seqs[i]); err != nil {
				return err
			}
		}
	}
	_, err := tx.Exec(ctx, ledgerSQL, ids, txs, sinks, keys, seqs, fates)
	return err
}

// tenantOf returns the tenant of calls of an ordering key: one of ten, or none without a key.
func tenantOf(key string) string {
	if key == "" {
		return ""
	}
	return "t" + key[len(key)-1:]
}

func enqueue(ctx context.Context, tx pgx.Tx, calls []outbox.Call, oneByOne bool) error {
	if !oneByOne {
		return outbox.EnqueueAll(ctx, tx, calls...)
	}
	for _, c := range calls {
		if err := outbox.Enqueue(ctx, tx, c); err != nil {
			return err
		}
	}
	return nil
}
