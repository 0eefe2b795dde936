package reports

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/show"
)

// SinksOfLog finds each sink that has calls in the log; its last row is null. By the index
// batches_new, one look for each.
const SinksOfLog = `
with recursive of_log as (
  (select r.sink from onlyonce.batches r order by r.sink limit 1)
  union all
  select (select r.sink from onlyonce.batches r where r.sink > s.sink order by r.sink limit 1)
    from of_log s where s.sink is not null)`

// pendingOf finds, for each lane of each sink of the log, the calls that no cursor has passed, the
// oldest transaction first. In: sink (null: any), how many of each lane; more conditions may follow
// the first part. By the index batches_new, from the oldest transaction that the lane's cursor has
// not seen. It reads one batch more than calls are asked for: of the one that the cursor is in,
// some are done. listed: a relay has listed the sink.
const (
	pendingOf = SinksOfLog + `,
pending as (
  select r.*, l.id is not null as listed
    from of_log s cross join generate_series(0, 15) n(lane)
    left join onlyonce.lanes l on l.sink = s.sink and l.lane = n.lane
    cross join lateral (
      select b.* from onlyonce.batches b
       where b.sink = s.sink and b.lane = n.lane and b.xid >= coalesce(pg_snapshot_xmin(l.prev), '0'::xid8)
         and not coalesce(pg_visible_in_snapshot(b.xid, l.prev), false)
         and not coalesce(pg_visible_in_snapshot(b.xid, l.target) and b.id + b.n - 1 <= l.last_id, false)`
	pendingEnd = `
       order by b.xid, b.id limit $2 + 1) b
    cross join lateral (
      select r.* from onlyonce.outbox_log r
       where r.slot = b.slot and r.sink = b.sink and r.lane = b.lane and r.xid = b.xid and r.batch = b.id
         and not coalesce(pg_visible_in_snapshot(r.xid, l.target) and r.id <= l.last_id, false) offset 0) r
   where s.sink is not null and ($1::text is null or s.sink = $1))`
)

// pendingCallsSQL lists calls that are to be sent, oldest first. In: sink (null: any), how many,
// scope, name (null: any). Reads that many calls of each lane. No bodies.
const pendingCallsSQL = pendingOf + `
         and ($3::text is null or $3 = any (coalesce(b.scopes, array[b.scope])))
         and ($4::text is null or $4 = any (coalesce(b.names, array[b.name])))` +
	pendingEnd + `
select id,
       key::text as key,
       sink,
       lane,
       name,
       tenant,
       scope,
       method,
       target,
       listed,
       created_at,
       not_before,
       octet_length(body)::bigint as bytes
  from pending
 where ($3::text is null or scope = $3) and ($4::text is null or name = $4) order by created_at, id limit $2`

// pendingOldestSQL finds the oldest call that is to be sent of each sink. In: sink (null: any), 1.
// Reads one call of each lane.
const pendingOldestSQL = pendingOf + pendingEnd + `
select sink,
       bool_and(listed) as listed,
       min(created_at) as created_at,
       extract(epoch from clock_timestamp() - min(created_at))::float8 as age_seconds
  from pending group by sink order by sink`

// BatchesOfKey finds the batches that hold a call of a key, $1, as a table expression. It reads the
// log whole, without its bodies.
const BatchesOfKey = `(select b.slot,
       b.sink,
       b.lane,
       b.xid,
       b.id as batch
  from onlyonce.batches b
 where $1::uuid = any (b.keys) offset 0)`

// callSQL reads one call of the log. In: key, whether with its body. One row, or none.
const callSQL = `
select r.id,
       r.key::text as key,
       r.sink,
       r.lane,
       r.name,
       r.tenant,
       r.scope,
       r.method,
       r.target,
       r.headers,
       r.trace,
       r.order_key::text as order_key,
       r.created_at,
       r.not_before,
       r.erased_at,
       r.capture,
       r.sealed,
       octet_length(r.body)::bigint as bytes,
       case when $2::boolean then r.body end as body,
       c.state,
       c.parked_id,
       c.attempts,
       c.error,
       c.settled_at,
       k.paused_at,
       k.paused_by,
       k.pause_reason,
       exists (select 1 from onlyonce.sink_lanes l where l.sink = r.sink) as listed
  from ` + BatchesOfKey + ` b
 cross join lateral (select *
                       from onlyonce.outbox_log r
                      where r.slot = b.slot
                        and r.sink = b.sink
                        and r.lane = b.lane
                        and r.xid = b.xid
                        and r.batch = b.batch
                     offset 0) r
 cross join lateral (select *
                       from onlyonce.calls c
                      where c.sink = b.sink and c.lane = b.lane and c.xid = b.xid and c.batch = b.batch and c.id = r.id
                     offset 0) c
  left join onlyonce.sinks k on k.name = r.sink
 where r.key = $1::uuid order by r.id desc limit 1`

// PendingCall is a call of the log that is to be sent. Calls that have failed are parked: see
// [Parked].
type PendingCall struct {
	ID        int64      `json:"id"`
	Key       string     `json:"key" doc:"the idempotency key"`
	Sink      string     `json:"sink"`
	Lane      int16      `json:"lane"`
	Name      string     `json:"name"`
	Tenant    string     `json:"tenant"`
	Scope     string     `json:"scope"`
	Method    string     `json:"method"`
	Target    string     `json:"target"`
	Listed    bool       `json:"listed" doc:"a relay has listed the sink; if none has, the call waits"`
	CreatedAt time.Time  `json:"created_at"`
	NotBefore *time.Time `json:"not_before" doc:"it is not sent before this time; nil: at once"`
	Bytes     int64      `json:"bytes" doc:"size of its body"`
}

// State is why the call is not sent yet; empty: it is a relay's turn.
func (c *PendingCall) State() string {
	switch {
	case !c.Listed:
		return "no relay"
	case c.NotBefore != nil:
		return "not before " + show.Instant(*c.NotBefore)
	}
	return ""
}

// CallFilter picks calls that are to be sent. The zero value picks the oldest DefaultLimit.
type CallFilter struct {
	Sink  string
	Scope string
	Name  string
	Limit int
}

// PendingCallList returns the calls of the log that are to be sent, oldest first, and whether there
// are more. Bodies and headers are not read. It reads at most Limit+1 calls of each of the 16 lanes
// of each sink; with Scope or Name, all calls that are to be sent.
func PendingCallList(ctx context.Context, db DB, f CallFilter) (calls []PendingCall, more bool, err error) {
	return Page[PendingCall](
		ctx,
		db,
		f.Limit,
		pendingCallsSQL,
		OrNull(f.Sink),
		LimitOf(f.Limit),
		OrNull(f.Scope),
		OrNull(f.Name),
	)
}

// OldestCall is the oldest call of a sink that is to be sent.
type OldestCall struct {
	Sink       string    `json:"sink"`
	Listed     bool      `json:"listed" doc:"a relay has listed the sink"`
	CreatedAt  time.Time `json:"created_at"`
	AgeSeconds float64   `json:"age_seconds" doc:"by the database's clock"`
}

// OldestCalls returns the oldest call of each sink, by sink. It reads one call of each lane.
func OldestCalls(ctx context.Context, tx pgx.Tx) ([]OldestCall, error) {
	return Collect[OldestCall](ctx, tx, pendingOldestSQL, nil, 1)
}

// Call is everything that the log has of one call. A nil pointer means: none, or not yet.
type Call struct {
	ID        int64      `json:"id"`
	Key       string     `json:"key" doc:"the idempotency key"`
	State     string     `json:"state"`
	Sink      string     `json:"sink"`
	Listed    bool       `json:"listed" doc:"a relay has listed the sink"`
	Lane      int16      `json:"lane"`
	Name      string     `json:"name"`
	Tenant    string     `json:"tenant"`
	Scope     string     `json:"scope"`
	Method    string     `json:"method"`
	Target    string     `json:"target"`
	Headers   string     `json:"headers" doc:"a line \"Name: value\" for each"`
	Trace     *string    `json:"trace" doc:"its trace context"`
	OrderKey  *string    `json:"order_key"`
	CreatedAt time.Time  `json:"created_at"`
	NotBefore *time.Time `json:"not_before"`
	ErasedAt  *time.Time `json:"erased_at" doc:"when its body was erased"`
	Capture   bool       `json:"capture" doc:"the answer is kept for RelayConfig.Complete"`
	Sealed    bool       `json:"sealed" doc:"its body is encrypted"`
	Bytes     int64      `json:"bytes" doc:"size of its body"`
	Body      Octets     `json:"body,omitzero"`

	// the row of a call that has failed; Attempts, Error and SettledAt are that row's
	ParkedID  *int64     `json:"parked_id" doc:"above"`
	Attempts  *int32     `json:"attempts"`
	Error     *string    `json:"error"`
	SettledAt *time.Time `json:"settled_at"`

	// The pause of its sink.
	PausedAt    *time.Time `json:"paused_at"`
	PausedBy    *string    `json:"paused_by"`
	PauseReason *string    `json:"pause_reason"`
}

// PauseText describes the pause of a sink: since when, by which actor and why. It is empty if there
// is none.
func PauseText(at *time.Time, by, reason *string) string {
	if at == nil {
		return ""
	}
	return fmt.Sprintf("since %s by %s: %s", show.Instant(*at), show.OrDash(by), show.OrDash(reason))
}

// CallByKey returns what the log has of the call with an idempotency key, with its body if body is
// set: bodies may be private. It returns nil if the log has no such call: it was never enqueued, or
// its segment was emptied after it was settled. Key must be a UUID, or the error is a [*Refusal].
func CallByKey(ctx context.Context, db DB, key string, body bool) (*Call, error) {
	id, err := uuid.Parse(strings.TrimSpace(key))
	if err != nil {
		return nil, &Refusal{
			Reason: fmt.Sprintf("%q is no UUID, and so no idempotency key of a call", key),
			Kind:   Invalid,
		}
	}
	var c *Call
	err = Snapshot(ctx, db, func(tx pgx.Tx) error { return First(ctx, tx, &c, callSQL, id.String(), body) })
	return c, err
}
