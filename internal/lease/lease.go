// Package lease decides which of several independent processes does a thing that only one of them
// may do. There is one row of onlyonce.leases for each such thing, for example for a partition.
//
// A lease ends by the database's clock, so the clocks of the processes need not agree. Its owner is
// (epoch, nonce): after a failover that loses a take-over epochs repeat, but random nonces do not.
//
// A lease alone prevents no write: a process that was stopped for a minute still believes in its
// lease when it continues. So every transaction of an owner calls onlyonce.hold(id, epoch, nonce).
// It raises OO001 for an owner that was replaced, and keeps the lease from being taken over until
// the transaction ends.
//
// What an owner does outside the database is bounded by its own monotonic clock, counted from
// [Lease.Sent].
package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/names"
)

// insertSQL makes the row. In: name. Relies on the unique index on onlyonce.leases.name; any
// isolation level.
const insertSQL = `insert into onlyonce.leases (name) values ($1) on conflict (name) do nothing`

// readSQL says who may take over. In: name. Out: id, epoch, whether it is free; no row before it is
// made. clock_timestamp() and not now(), which is when the transaction began. Takes no lock.
const readSQL = `
select id, epoch, (until is null or until <= clock_timestamp() or until > clock_timestamp() + interval '1 hour')
  from onlyonce.leases where name = $1`

// Longest is the longest ttl of any lease. One that ends later was written while the database's
// clock was ahead; it counts as over, wherever a lease is read (T9).
const Longest = time.Hour

// raiseSQL takes a lease over. In: lease, epoch that was read, new nonce, ttl. Out: the new epoch,
// or null if another process was first. Locks the lease's row and waits there for a transaction of
// its owner.
const raiseSQL = `select onlyonce.raise_epoch($1, $2, $3::uuid, $4::interval)`

// renewSQL prolongs leases that are still their caller's. In: ids, epochs, nonces, ttl. Out: the
// ids of those that are; the rest were taken over. A renewal that comes late revives the lease;
// raise_epoch asks for the end again for that reason. Locks the rows in the order of their ids, so
// that two relays that exchange leases cannot deadlock, and waits there for transactions that hold
// them. READ COMMITTED: a row that was taken over while this waited is compared anew, and left out.
const renewSQL = `
with mine as (
  select l.id from onlyonce.leases l
    join unnest($1::bigint[], $2::bigint[], $3::uuid[]) u(id, epoch, nonce) on u.id = l.id
   where l.epoch = u.epoch and l.nonce = u.nonce
   order by l.id for no key update of l)
update onlyonce.leases l set until = clock_timestamp() + $4::interval from mine where l.id = mine.id returning l.id`

// releaseSQL gives a lease back, so that another process takes over at once. In: lease, epoch,
// nonce. Without the nonce nothing that its owner may still have under way passes onlyonce.hold.
const releaseSQL = `
update onlyonce.leases
   set until = null, nonce = null, freed_at = clock_timestamp() where id = $1 and epoch = $2 and nonce = $3::uuid`

// expireSQL ends all leases on time, as the clock does later. In, out: nothing. Locks the rows that
// it changes in the order of their ids, as renewSQL does: a process that has died may still have
// that one under way.
const expireSQL = `
with held as (select l.id from onlyonce.leases l where l.until > clock_timestamp() order by l.id for no key update of l)
update onlyonce.leases l set until = clock_timestamp() from held where l.id = held.id`

// ExpireAll ends all leases on time, so that a test in which their owners have died need not wait.
func ExpireAll(ctx context.Context, db DB) error {
	_, err := db.Exec(ctx, expireSQL)
	return err
}

// DB is what leases need: *pgxpool.Pool and *pgx.Conn have it. Each statement is a transaction of
// its own; a transaction around them would keep its locks, and its own idea of which rows there
// are.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Lease is one acquisition. It has no lock of its own: who renews it in one goroutine and reads
// Sent in another must see to that.
type Lease struct {
	ID, Epoch int64
	Nonce     string
	// Sent is when the acquisition, or the latest successful renewal, was sent, which is before the
	// database counted the ttl from its own clock. Until Sent + ttl no other process owns the
	// lease.
	Sent time.Time
}

// Acquire takes a lease that is free, and creates it if it does not exist. It returns nil if
// another process owns it. The caller renews it, and gives it back with Release; otherwise it ends
// by itself.
func Acquire(ctx context.Context, db DB, name names.Lease, ttl time.Duration) (*Lease, error) {
	var l Lease
	var free bool
	read := func() error { return db.QueryRow(ctx, readSQL, name.String()).Scan(&l.ID, &l.Epoch, &free) }
	err := read()
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err := db.Exec(ctx, insertSQL, name.String()); err != nil {
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
	l.Nonce = nonce.String()
	// Detached: if it were cut off in the middle it may have succeeded, and all processes would
	// wait for a lease without an owner. It takes at most a third of the ttl, even if another
	// process holds the row locked; otherwise the caller could not renew its other leases
	// meanwhile.
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), ttl/3)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.Sent = time.Now()
	var epoch *int64
	if err := db.QueryRow(bounded, raiseSQL, l.ID, l.Epoch, l.Nonce, ttl).Scan(&epoch); err != nil {
		return nil, fmt.Errorf("taking lease %s: %w", name, err)
	}
	if epoch == nil {
		return nil, nil
	}
	l.Epoch = *epoch
	return &l, nil
}

// Renew prolongs the lease and reports whether it is still ours. After an error nothing is known.
func (l *Lease) Renew(ctx context.Context, db DB, ttl time.Duration) (bool, error) {
	lost, err := RenewAll(ctx, db, []*Lease{l}, ttl)
	return err == nil && len(lost) == 0, err
}

// RenewAll prolongs leases in one round trip and returns those that were taken over. After an error
// nothing is known of any.
func RenewAll(ctx context.Context, db DB, leases []*Lease, ttl time.Duration) (lost []*Lease, err error) {
	if len(leases) == 0 {
		return nil, nil
	}
	ids := make([]int64, len(leases))
	epochs := make([]int64, len(leases))
	nonces := make([]string, len(leases))
	for i, l := range leases {
		ids[i] = l.ID
		epochs[i] = l.Epoch
		nonces[i] = l.Nonce
	}
	sent := time.Now()
	rows, err := db.Query(ctx, renewSQL, ids, epochs, nonces, ttl)
	if err != nil {
		return nil, fmt.Errorf("renewing leases: %w", err)
	}
	ours, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("renewing leases: %w", err)
	}
	for _, l := range leases {
		if slices.Contains(ours, l.ID) {
			l.Sent = sent
		} else {
			lost = append(lost, l)
		}
	}
	return lost, nil
}

// Release gives the lease back. One that was taken over is left alone, and no error.
func (l *Lease) Release(ctx context.Context, db DB) error {
	if _, err := db.Exec(ctx, releaseSQL, l.ID, l.Epoch, l.Nonce); err != nil {
		return fmt.Errorf("releasing a lease: %w", err)
	}
	return nil
}

// Join takes the first free one of the members' leases: there are as many rows as there ever were
// members at once. A member is counted for as long as it renews its lease.
func Join(ctx context.Context, db DB, members names.Leases, ttl time.Duration) (*Lease, error) {
	for n := 0; ; n++ {
		if l, err := Acquire(ctx, db, members.Lease(n), ttl); l != nil || err != nil {
			return l, err
		}
	}
}

// Share is how many of all things one of so many members may hold: rounded up, so that everything
// has a holder.
func Share(all, members int) int {
	members = max(members, 1)
	return (all + members - 1) / members
}
