package consumer

import "context"

// holdersSQL names the sessions that have the lock of a cursor's owner. In: id. One row.
const holdersSQL = `select onlyonce.lock_holders(onlyonce.owner_lock($1))`

// because says what the database knows of a hindrance and its error does not say: which sessions
// keep this owner from its transactions. PostgreSQL lets every login take the lock, with or without
// rights on the schema, so that it may be none of ours (S2). It is empty if there is nothing to
// say.
func (ap *applier) because(ctx context.Context, h *hindrance) string {
	if !h.keptOut() {
		return ""
	}
	var holders string
	if err := ap.c.queryRow(ctx, holdersSQL, ap.cur.id).Scan(&holders); err != nil {
		return "" // the hindrance itself must be reported
	}
	return "; the lock of the partition's owner is held by " + holders +
		" (`onlyonce doctor` tells which of them has no right to it)"
}
