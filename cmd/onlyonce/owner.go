package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// lockCursorSQL locks the lease of a cursor. In: scope, topic, partition. One row, or none where there is no cursor. The
// lock waits for the batch of an owner, which holds the row FOR SHARE, and keeps the next one and every taker out. What
// the batch did shows only to a statement after this one.
const lockCursorSQL = `
select l.id from onlyonce.cursors c join onlyonce.leases l on l.id = c.id
 where c.scope = $1 and c.topic = $2 and c.partition = $3
   for no key update of l`

// fenceOwnerSQL raises the epoch and sets a new nonce, so that whatever the present owner still does fails on its
// fence. In: lease, the epoch that was read under the lock. Out: the new epoch; never null under that lock, as the lease
// of a cursor has no time.
const fenceOwnerSQL = `select onlyonce.raise_epoch($1, $2, gen_random_uuid())`

// whole says which flags are missing from those that name one cursor, and the reason.
func (f *cursorFilter) whole(c *consent, more ...given) error {
	all := []given{{"-scope", f.scope != nil}, {"-topic", f.topic != nil}, {"-partition", f.partition != nil}}
	return missing(append(append(all, more...), given{"-reason", c.reason != nil})...)
}

// String names the one cursor that the filter picks.
func (f cursorFilter) String() string {
	return fmt.Sprintf("scope %q, topic %q, partition %d", *f.scope, *f.topic, *f.partition)
}

// lockLease locks the lease of the one cursor that the filter picks, if there is one.
func (f *cursorFilter) lockLease(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, lockCursorSQL, f.scope, f.topic, f.partition)
	return err
}

// readOne returns the cursor, nil where there is none.
func (f *cursorFilter) readOne(ctx context.Context, tx pgx.Tx) (*cursorRow, error) {
	cursors, err := readCursors(ctx, tx, *f)
	if err != nil || len(cursors) == 0 {
		return nil, err
	}
	return &cursors[0], nil
}

// readThere is readOne for a command that makes no cursor.
func (f *cursorFilter) readThere(ctx context.Context, tx pgx.Tx) (*cursorRow, error) {
	c, err := f.readOne(ctx, tx)
	if err == nil && c == nil {
		err = usagef("there is no cursor (%s): correct the flags; `onlyonce cursor show` lists those there are", *f)
	}
	return c, err
}

// readBack returns the cursor after it was written.
func (f *cursorFilter) readBack(ctx context.Context, tx pgx.Tx) (*cursorRow, error) {
	c, err := f.readOne(ctx, tx)
	if err == nil && c == nil {
		err = errors.New("the cursor is not there after it was written")
	}
	return c, err
}

// fence fences the owner out. The cursor was read under the lock on its lease.
func fence(ctx context.Context, tx pgx.Tx, c *cursorRow) error {
	var epoch *int64
	if err := tx.QueryRow(ctx, fenceOwnerSQL, c.ID, c.Epoch).Scan(&epoch); err != nil {
		return err
	}
	if epoch == nil {
		return fmt.Errorf("the lease of cursor %d cannot be raised: its column \"until\" is set, which no cursor's is", c.ID)
	}
	return nil
}

// changed reports whether somebody took the cursor over or set its position since.
func changed(c, now *cursorRow) bool {
	return c.ID != now.ID || c.Epoch != now.Epoch || c.Run != now.Run
}
