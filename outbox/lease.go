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
)

// A sink's lease says which relay sends its calls. It is a row of onlyonce.leases, on the database's clock; its
// owner is (epoch, nonce), because after a failover that loses a take-over epochs repeat and random nonces do not. It is
// the sink's and not the relay's, so that two relays that were given different names, or different
// lists of sinks (a rolling deploy that adds one), can never both send one row.

// makeLeaseSQL makes the row. In: name. Relies on the unique index on onlyonce.leases.name; any isolation level.
const makeLeaseSQL = `insert into onlyonce.leases (name) values ($1) on conflict (name) do nothing`

// readLeaseSQL says who may take over. In: name. Out: id, epoch, whether it is free; no row before it is made.
// clock_timestamp() and not now(), which is when the transaction began. Takes no lock.
const readLeaseSQL = `
select id, epoch, (until is null or until <= clock_timestamp()) from onlyonce.leases where name = $1`

// raiseLeaseSQL takes a lease over. In: lease, epoch that was read, new nonce, ttl. Out: the new epoch, or null if
// somebody else was first. Locks the lease's row and waits there for a transaction of its owner.
const raiseLeaseSQL = `select onlyonce.raise_epoch($1, $2, $3::uuid, $4::interval)`

// renewLeaseSQL prolongs a lease that is still its caller's. In: lease, epoch, nonce, ttl. One row, or none: it was
// taken over. A renewal that comes late revives the lease; raise_epoch asks for the end again for that reason.
const renewLeaseSQL = `
update onlyonce.leases set until = clock_timestamp() + $4::interval where id = $1 and epoch = $2 and nonce = $3::uuid`

// releaseLeaseSQL gives a lease back, so that another relay takes over at once. In: lease, epoch, nonce. Without the
// nonce nothing that its owner may still have under way passes onlyonce.hold.
const releaseLeaseSQL = `
update onlyonce.leases set until = null, nonce = null where id = $1 and epoch = $2 and nonce = $3::uuid`

// lease is one acquisition of a sink's lease.
type lease struct {
	id, epoch int64
	nonce     string
	// sent is when the acquisition was sent, before the database counted the ttl from its own clock.
	sent time.Time
}

// acquireLease returns nil if another relay owns the lease.
func (w *worker) acquireLease(ctx context.Context) (*lease, error) {
	name := "relay/" + w.name
	var l lease
	var free bool
	read := func() error {
		bounded, cancel := context.WithTimeout(ctx, w.dbTimeout)
		defer cancel()
		return w.pool.QueryRow(bounded, readLeaseSQL, name).Scan(&l.id, &l.epoch, &free)
	}
	err := read()
	if errors.Is(err, pgx.ErrNoRows) {
		bounded, cancel := w.detached(ctx)
		defer cancel()
		if _, err := w.pool.Exec(bounded, makeLeaseSQL, name); err != nil {
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
	// Detached: cut off in the middle it may have succeeded, and everybody would wait for a lease that nobody owns.
	bounded, cancel := w.detached(ctx)
	defer cancel()
	l.sent = time.Now()
	var epoch *int64
	if err := w.pool.QueryRow(bounded, raiseLeaseSQL, l.id, l.epoch, l.nonce, w.cfg.LeaseTTL).Scan(&epoch); err != nil {
		return nil, fmt.Errorf("taking lease %s: %w", name, err)
	}
	if epoch == nil {
		return nil, nil
	}
	l.epoch = *epoch
	return &l, nil
}

// renew reports whether the lease is still ours.
func (l *lease) renew(ctx context.Context, pool *pgxpool.Pool, ttl time.Duration) (bool, error) {
	tag, err := pool.Exec(ctx, renewLeaseSQL, l.id, l.epoch, l.nonce, ttl)
	return tag.RowsAffected() == 1, err
}

func (l *lease) release(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, releaseLeaseSQL, l.id, l.epoch, l.nonce)
	return err
}
