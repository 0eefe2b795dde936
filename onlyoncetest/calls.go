package onlyoncetest

import (
	"context"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/outbox"
)

// Call is an outbound call that a transaction has enqueued: its Sink, Name, Method, Target, Header
// and Body as they are stored, so the Body of a sealed call is encrypted.
type Call struct {
	outbox.Call
	// Key is the idempotency key that the remote sees.
	Key    string
	Sealed bool

	id    int64
	order string // a hash of its ordering key; empty for none
}

const callsSQL = `
select id,
       sink,
       name,
       key::text,
       method,
       target,
       headers,
       body,
       sealed,
       coalesce(order_key::text, '')
  from onlyonce.outbox_log where id > $1 order by id`

// Calls returns all calls enqueued in the pool's database, in that order, whether a relay has sent
// them or not.
func Calls(ctx context.Context, pool *pgxpool.Pool) ([]Call, error) { return callsAfter(ctx, pool, 0) }

func callsAfter(ctx context.Context, pool *pgxpool.Pool, id int64) ([]Call, error) {
	rows, err := pool.Query(ctx, callsSQL, id)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Call, err error) {
		var headers string
		err = row.Scan(&c.id, &c.Sink, &c.Name, &c.Key, &c.Method, &c.Target, &headers, &c.Body, &c.Sealed, &c.order)
		c.Header = http.Header{}
		for line := range strings.Lines(headers) {
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			c.Header.Add(name, value)
		}
		return c, err
	})
}
