package reports

import (
	"context"
	"encoding/json"
	"time"
)

// auditRowsSQL lists audit rows, newest first. In: action, actor (each may be null: any), below
// which id (null: from the newest), how many rows. Walks the primary key backwards until it has
// that many.
const auditRowsSQL = `
select id, at, actor, action, reason, detail
  from onlyonce.audit
 where ($1::text is null or action = $1) and ($2::text is null or actor = $2) and ($3::bigint is null or id < $3)
 order by id desc limit $4`

// AuditRow is a decision that an operator made.
type AuditRow struct {
	ID     int64           `json:"id"`
	At     time.Time       `json:"at"`
	Actor  string          `json:"actor" doc:"the login, unless the program named a person"`
	Action string          `json:"action" doc:"the command, for example \"parked redrive\""`
	Reason string          `json:"reason"`
	Detail json.RawMessage `json:"detail" doc:"what was changed, an object whose fields depend on the action"`
}

// AuditFilter picks audit rows. The zero value picks the newest DefaultLimit.
type AuditFilter struct {
	Action string // empty: any
	Actor  string // empty: any
	Before int64  // only rows with a lower id: the next page; 0: from the newest
	Limit  int    // how many rows at most, up to MostLimit; 0: DefaultLimit
}

// AuditRows returns the audit rows that the filter picks, newest first, and whether there are more.
// It reads rows of onlyonce.audit from the newest on until it has found Limit+1.
func AuditRows(ctx context.Context, db DB, f AuditFilter) (rows []AuditRow, more bool, err error) {
	return Page[AuditRow](ctx, db, f.Limit, auditRowsSQL, OrNull(f.Action), OrNull(f.Actor), OrNull(f.Before), LimitOf(f.Limit))
}
