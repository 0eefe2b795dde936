package reports

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// requestsSQL lists requests of the HTTP layer. In: whether completed ones too, tenant, scope
// (null: any), how many rows, id (null: any). One by its id; others walk http_records_expired
// backwards, where the open ones come first. The lease and the steps are read of those rows only.
const requestsSQL = `
select r.id::text as id,
       case
         when r.state = 'running'
              and coalesce(l.until > clock_timestamp() and l.until <= clock_timestamp() + interval '1 hour', false)
           then 'running'
         when r.state = 'running' then case when r.abandoned_at is null then 'left' else 'abandoned' end
         else r.state
       end as state,
       r.tenant,
       r.scope,
       r.created_at,
       r.completed_at,
       r.expires_at,
       r.erased_at,
       octet_length(r.response)::bigint as bytes,
       coalesce(s.unknown, '{}') as unknown,
       coalesce(s.done, '{}') as done,
       s.unknown_since
  from (select r.* from onlyonce.http_records r
         where ($1 or r.expires_at is null)
           and ($2::text is null or r.tenant = $2)
           and ($3::text is null or r.scope = $3)
           and ($5::uuid is null or r.id = $5)
         order by r.expires_at desc nulls first, r.created_at desc limit $4) r
  left join onlyonce.leases l on l.id = r.lease_id
 cross join lateral (
   select array_agg(s.name order by s.first_at) filter (where s.done_at is null) as unknown,
          array_agg(s.name order by s.first_at) filter (where s.done_at is not null) as done,
          min(s.first_at) filter (where s.done_at is null) as unknown_since
     from onlyonce.http_steps s where s.record_id = r.id) s
 order by r.expires_at desc nulls first, r.created_at desc`

// RequestFilter picks requests. The zero value picks the latest 100 that are not
// completed.
type RequestFilter struct {
	All    bool
	Tenant string
	Scope  string
	ID     string
	Limit  int
}

// Requests returns the requests that the filter picks, as rows of type T, those that are not
// completed first, and whether there are more. It reads the rows of open requests, and with All
// those of completed ones from the latest on until it has found Limit+1, each with the rows of its
// steps.
func Requests[T any](ctx context.Context, tx pgx.Tx, f RequestFilter) (requests []T, more bool, err error) {
	if err := checkID(f.ID); err != nil {
		return nil, false, err
	}
	requests, err = Collect[T](
		ctx,
		tx,
		requestsSQL,
		f.All,
		OrNull(f.Tenant),
		OrNull(f.Scope),
		LimitOf(f.Limit),
		OrNull(f.ID),
	)
	requests, more = Cut(requests, f.Limit)
	return requests, more, err
}

// checkID refuses an id that is no UUID.
func checkID(id string) error {
	if id != "" && uuid.Validate(id) != nil {
		return &Refusal{
			Kind:   Invalid,
			Reason: "`ID` must be a UUID",
			Remedy: "take it from this list, or from the client of an operation",
		}
	}
	return nil
}
