package outbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/fault"
)

// A lease says who owns something. It is a row of onlyonce.leases, on the database's clock; its owner is (epoch, nonce), because after a
// failover that loses a take-over epochs repeat and random nonces do not.

// makeLeaseSQL makes the row. In: name. Relies on the unique index on onlyonce.leases.name; any isolation level.
const makeLeaseSQL = `insert into onlyonce.leases (name) values ($1) on conflict (name) do nothing`

// readLeaseSQL says who may take over. In: name. Out: id, epoch, whether it is free; no row before it is made.
// clock_timestamp() and not now(), which is when the transaction began. Takes no lock.
const readLeaseSQL = `
select id, epoch, (until is null or until <= clock_timestamp()) from onlyonce.leases where name = $1`

// raiseLeaseSQL takes a lease over. In: lease, epoch that was read, new nonce, ttl. Out: the new epoch, or null if
// somebody else was first. Locks the lease's row and waits there for a transaction of its owner.
const raiseLeaseSQL = `select onlyonce.raise_epoch($1, $2, $3::uuid, $4::interval)`

// renewLeasesSQL prolongs leases that are still their caller's. In: ids, epochs, nonces, ttl. A row for each that is. A renewal that
// comes late revives the lease; raise_epoch asks for the end again for that reason.
const renewLeasesSQL = `
update onlyonce.leases l set until = clock_timestamp() + $4::interval
  from unnest($1::bigint[], $2::bigint[], $3::uuid[]) as mine(id, epoch, nonce)
 where l.id = mine.id and l.epoch = mine.epoch and l.nonce = mine.nonce
returning l.id`

// releaseLeaseSQL gives a lease back, so that another relay takes over at once. In: lease, epoch, nonce. Without the
// nonce nothing that its owner may still have under way passes onlyonce.hold.
const releaseLeaseSQL = `
update onlyonce.leases set until = null, nonce = null where id = $1 and epoch = $2 and nonce = $3::uuid`

// lease is one acquisition.
type lease struct {
	id, epoch int64
	nonce     string
	// sent is when the acquisition was sent, before the database counted the ttl from its own clock.
	sent time.Time
}

// acquireLease returns nil if somebody else owns the lease.
func acquireLease(ctx context.Context, pool *pgxpool.Pool, name string, ttl time.Duration) (*lease, error) {
	var l lease
	var free bool
	read := func() error { return pool.QueryRow(ctx, readLeaseSQL, name).Scan(&l.id, &l.epoch, &free) }
	err := read()
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err := pool.Exec(ctx, makeLeaseSQL, name); err != nil {
			return nil, fmt.Errorf("making lease %s: %w", name, err)
		}
		err = read()
	}
	if err != nil {
		return nil, fmt.Errorf("reading lease %s: %w", name, err)
	}
	if !free {
		return nil, nil
	}
	var nonce uuid.UUID
	_, _ = rand.Read(nonce[:]) // never fails
	l.nonce = nonce.String()
	l.sent = time.Now()
	var epoch *int64
	if err := pool.QueryRow(ctx, raiseLeaseSQL, l.id, l.epoch, l.nonce, ttl).Scan(&epoch); err != nil {
		return nil, fmt.Errorf("taking lease %s: %w", name, err)
	}
	if epoch == nil {
		return nil, nil
	}
	l.epoch = *epoch
	return &l, nil
}

// renewLeases returns which leases are still their caller's.
func renewLeases(ctx context.Context, pool *pgxpool.Pool, held []*lease, ttl time.Duration) (map[int64]bool, error) {
	ids, epochs, nonces := make([]int64, len(held)), make([]int64, len(held)), make([]string, len(held))
	for i, l := range held {
		ids[i], epochs[i], nonces[i] = l.id, l.epoch, l.nonce
	}
	rows, err := pool.Query(ctx, renewLeasesSQL, ids, epochs, nonces, ttl)
	if err != nil {
		return nil, err
	}
	kept, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	still := make(map[int64]bool, len(kept))
	for _, id := range kept {
		still[id] = true
	}
	return still, err
}

func (l *lease) release(ctx context.Context, pool *pgxpool.Pool) error {
	if err := fault.Point(fault.RelayReleasing); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, releaseLeaseSQL, l.id, l.epoch, l.nonce)
	return err
}
