package reports

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/show"
)

// auditRowsSQL lists audit rows, newest first. In: action, actor (each may be null: any), below
// which id (null: from the newest), how many rows. Walks the primary key backwards until it has
// that many.
const auditRowsSQL = `
select id,
       at,
       actor,
       action,
       reason,
       detail
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
	Actor  string
	Action string
	Before int64 // only rows with a lower id: the next page; 0: from the newest
	Limit  int
}

// AuditRows returns the audit rows that the filter picks, newest first, and whether there are more.
// It reads rows of onlyonce.audit from the newest on until it has found Limit+1.
func AuditRows(ctx context.Context, db DB, f AuditFilter) (rows []AuditRow, more bool, err error) {
	return Page[AuditRow](
		ctx,
		db,
		f.Limit,
		auditRowsSQL,
		OrNull(f.Action),
		OrNull(f.Actor),
		OrNull(f.Before),
		LimitOf(f.Limit),
	)
}

// decisionsSQL lists the decisions about a parked row, oldest first. In: its id. Reads the audit
// rows of redrives and discards.
const decisionsSQL = `
select id,
       at,
       actor,
       action,
       reason
  from onlyonce.audit
 where action in ('parked redrive', 'parked discard') and detail->'ids' @> to_jsonb($1::bigint) order by id`

// RowDecision is a decision about a parked row. AuditID is its row of the audit.
type RowDecision struct {
	AuditID int64     `json:"audit_id" db:"id"`
	At      time.Time `json:"at"`
	Actor   string    `json:"actor"`
	Action  string    `json:"action" doc:"parked redrive or parked discard"`
	Reason  string    `json:"reason"`
}

// String says it on one line.
func (d RowDecision) String() string {
	return fmt.Sprintf("%s, %s by %s, audit row %d: %s",
		strings.TrimPrefix(d.Action, "parked "), show.Instant(d.At), d.Actor, d.AuditID, d.Reason)
}

// DecisionsOf returns the decisions about a parked row, oldest first.
func DecisionsOf(ctx context.Context, tx pgx.Tx, id int64) ([]RowDecision, error) {
	return Collect[RowDecision](ctx, tx, decisionsSQL, id)
}
