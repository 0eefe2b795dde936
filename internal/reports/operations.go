package reports

import (
	"context"
	"time"
)

// operationsSQL lists operations of the HTTP layer. In: whether ended ones too, tenant, name (null:
// any), how many rows, id (null: any). Those that run come first; they have no expiry, and ended
// ones walk operations_expired backwards. A parked event has the key of its stream, tenant and
// operation: parked is asked by key, for each row that is returned (T13).
const operationsSQL = `
select o.id::text as id,
       case when o.state = 'running' and w.id is not null then 'suspended' else o.state end as state,
       o.tenant,
       o.principal,
       o.name,
       o.created_at,
       o.completed_at,
       o.expires_at,
       octet_length(o.result)::bigint as bytes,
       o.error_code,
       s.percent,
       s.text as progress,
       s.updated_at,
       s.cancel_at,
       w.id as parked_id
  from (select x.*, case when x.state = 'running' then onlyonce.key(x.tenant, x.topic, x.id::text) end as event_key
          from onlyonce.operations x
         where ($1 or x.completed_at is null)
           and ($2::text is null or x.tenant = $2)
           and ($3::text is null or x.name = $3)
           and ($5::uuid is null or x.id = $5)
         order by x.expires_at desc nulls first, x.created_at desc limit $4) o
  left join onlyonce.operation_signals s on s.id = o.id
  left join lateral (select p.id from onlyonce.parked p
                      where p.key = o.event_key
                        and p.kind = 'event'
                        and p.settled_at is null
                        and p.reason <> 'conflict'
                        and p.state = 'waiting'
                     offset 0) w on true
 order by o.expires_at desc nulls first, o.created_at desc`

// Operation is an operation of the HTTP layer: a request that was answered 202, and whose work is
// an event. Its result and the text of its error are left out. A nil pointer means: not yet, or
// none.
type Operation struct {
	ID string `json:"id" doc:"a UUID, as its client has it"`
	// one of: running, also while it waits to begin; suspended, if its work is parked and waits for
	// an operator; succeeded; failed; cancelled
	State       string     `json:"state" doc:"above"`
	Tenant      string     `json:"tenant"`
	Principal   string     `json:"principal"`
	Name        string     `json:"name"`
	CreatedAt   time.Time  `json:"created_at"`
	CompletedAt *time.Time `json:"completed_at"`
	ExpiresAt   *time.Time `json:"expires_at"`
	Bytes       *int64     `json:"bytes" doc:"size of the stored result"`
	ErrorCode   *string    `json:"error_code" doc:"of a failed one"`
	Percent     *int16     `json:"percent"`
	Progress    *string    `json:"progress" doc:"in words"`
	UpdatedAt   *time.Time `json:"updated_at"`
	CancelAt    *time.Time `json:"cancel_at" doc:"when its client asked to cancel it"`
	ParkedID    *int64     `json:"parked_id" doc:"of a suspended one"`
}

// OperationFilter picks operations. The zero value picks the latest DefaultLimit that have not
// ended.
type OperationFilter struct {
	All    bool
	Tenant string
	Name   string
	ID     string
	Limit  int
}

// OperationList returns the operations that the filter picks, those that have not ended first, and
// whether there are more. It reads the rows of operations that have not ended, and with All those
// of ended ones from the latest on until it has found Limit+1.
func OperationList(ctx context.Context, db DB, f OperationFilter) (operations []Operation, more bool, err error) {
	if err := checkID(f.ID); err != nil {
		return nil, false, err
	}
	return Page[Operation](
		ctx,
		db,
		f.Limit,
		operationsSQL,
		f.All,
		OrNull(f.Tenant),
		OrNull(f.Name),
		LimitOf(f.Limit),
		OrNull(f.ID),
	)
}
