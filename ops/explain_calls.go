package ops

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/codec"
	origins "github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/reports"
)

// callsOfSQL lists the calls that a transaction wrote. In: its number, how many. By the index
// batches_new, one look for each lane of each sink.
const callsOfSQL = reports.SinksOfLog + `
select c.id,
       c.key::text as key,
       c.sink,
       c.name,
       c.tenant,
       c.scope,
       c.state,
       c.parked_id,
       c.created_at
  from of_log s cross join generate_series(0, 15) n(lane)
 cross join lateral (select *
                       from onlyonce.calls c
                      where c.sink = s.sink and c.lane = n.lane and c.xid = ($1::bigint)::text::xid8 offset 0) c
 order by c.id limit $2`

// ExplainedCall is a call that a message's transaction enqueued.
type ExplainedCall struct {
	ID        int64     `json:"id"`
	Key       string    `json:"key" doc:"the idempotency key"`
	Sink      string    `json:"sink"`
	Name      string    `json:"name"`
	Tenant    string    `json:"tenant"`
	Scope     string    `json:"scope"`
	State     string    `json:"state" doc:"pending, delivered, waiting, retrying, blocked, reconcile or discarded"`
	ParkedID  *int64    `json:"parked_id" doc:"its row of onlyonce.parked, if it was parked"`
	CreatedAt time.Time `json:"created_at"`
	// true if its key derives from the message. Nil: that cannot be known
	Derived *bool `json:"derived" db:"-" doc:"above"`
}

// callsOf lists the calls of a transaction.
func callsOf(ctx context.Context, tx pgx.Tx, x *Transaction) ([]ExplainedCall, error) {
	return reports.Collect[ExplainedCall](ctx, tx, callsOfSQL, x.Xid, reports.ExplainLimit)
}

// derivedFirst moves the calls whose keys derive from the message to the front.
func derivedFirst(calls []ExplainedCall) {
	front := 0
	for i := range calls {
		if c := calls[i]; c.Derived != nil {
			copy(calls[front+1:i+1], calls[front:i])
			calls[front] = c
			front++
		}
	}
}

// derive reports whether the call's key is that of the message's call of that name without an id.
// Calls with an id cannot be recognised.
func (c *ExplainedCall) derive(of *KeyOf) {
	if of == nil || of.Tenant != c.Tenant || of.Scope != c.Scope {
		return
	}
	for _, replay := range []int32{0, int32(of.Replay)} {
		c.derived(origins.Origin{Tenant: of.Tenant, Scope: of.Scope, Topic: of.Topic, ID: of.ID, Replay: replay})
	}
}

func (c *ExplainedCall) derived(o origins.Origin) {
	if uuid.UUID(codec.Call(append(o.Fields(), c.Sink, c.Name, "")...)).String() == c.Key {
		c.Derived = new(true)
	}
}
