package operate

import (
	"cmp"
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/seal"
)

// parkedDetailSQL reads one row whole. In: id, whether with its body. One row, or none. By the
// primary key; its place among the unsettled rows of its ordering key by the partial index
// parked_order.
const parkedDetailSQL = `
select ` + reports.ParkedColumns + `,
       p.error,
       p.event_id,
       p.cluster_id,
       p.topic_id::text as topic_id,
       p.record_time,
       p.log_append_time,
       p.record_key,
       p.header_names,
       p.header_values,
       p.method,
       p.target,
       p.replay_no as replay,
       p.replay_resend,
       coalesce(o.ahead, 0) as ahead,
       coalesce(o.behind, 0) as behind,
       octet_length(p.body) as body_bytes,
       p.row_id,
       p.lane,
       p.first_attempt_at as first_attempt,
       p.erased_at,
       p.capture,
       p.sealed,
       p.first_key::text as first_key,
       p.trace,
       p.response_status,
       p.response_headers,
       octet_length(p.response_body) as response_bytes,
       case when $2::boolean then p.body end as body,
       case when $2::boolean then p.response_body end as response_body
  from onlyonce.parked p
  left join lateral (
    select count(*) filter (where (f.partition, f."offset") < (p.partition, p."offset")) as ahead,
           count(*) filter (where (f.partition, f."offset") > (p.partition, p."offset")) as behind
      from onlyonce.parked f where f.order_key = p.order_key and f.settled_at is null) o on true
 where p.id = $1`

// ParkedDetail is everything that is known of one parked row. A nil pointer means: not known, or
// none.
type ParkedDetail struct {
	ops.ParkedRow // its Error is whole

	Decisions []reports.RowDecision `json:"decisions" db:"-" doc:"redrives and discards of it, oldest first"`
	Behind    int64                 `json:"behind" doc:"unsettled rows of its ordering key after it"`
	// unsettled rows of its ordering key before it; Head is the first of those
	Ahead   int64   `json:"ahead" doc:"above"`
	EventID *string `json:"event_id" doc:"of an event"`

	// Of a message or event.
	ClusterID     *string          `json:"cluster_id"`
	TopicID       *string          `json:"topic_id"`
	RecordTime    *time.Time       `json:"record_time"`
	LogAppendTime bool             `json:"log_append_time" doc:"the broker set RecordTime, and not the producer"`
	RecordKey     reports.Octets   `json:"record_key"`
	Replay        int32            `json:"replay" doc:"the replay in which the message was parked; 0: none"`
	ReplayResend  bool             `json:"replay_resend"`
	Headers       []reports.Header `json:"headers" db:"-"`

	// Of a call: its id and lane in the log of the outbox, since when the remote may know its key,
	// when its body was erased, the key that it was enqueued under if an operator has given it Key
	// since, its trace context, and what a remote answered that has accepted it.
	Method       *string         `json:"method"`
	Target       *string         `json:"target"`
	RowID        *int64          `json:"row_id"`
	Lane         *int16          `json:"lane"`
	FirstAttempt *time.Time      `json:"first_attempt_at"`
	ErasedAt     *time.Time      `json:"erased_at"`
	Capture      bool            `json:"capture" doc:"the answer is kept for RelayConfig.Complete"`
	Sealed       bool            `json:"sealed"`
	FirstKey     *string         `json:"first_key"`
	Trace        *string         `json:"trace"`
	Response     *ParkedResponse `json:"response" db:"-"`

	BodyBytes *int32         `json:"body_bytes" doc:"size of the body"`
	Body      reports.Octets `json:"body,omitzero" doc:"nil unless it was asked for"`

	opened     bool // Body is as it was before it was sealed
	sealedHere bool // it was sealed when it was parked

	HeaderNames, HeaderValues [][]byte `json:"-"` // become Headers
	ResponseStatus            *int32   `json:"-"` // become Response
	ResponseHeaders           *string  `json:"-"`
	ResponseBytes             *int32   `json:"-"`
	ResponseBody              []byte   `json:"-"`
}

// Open opens a sealed body with the keys of the program that sealed it.
func (d *ParkedDetail) Open(sealer *seal.Sealer) error {
	if !d.Sealed || d.Body == nil || d.ErasedAt != nil {
		return nil
	}
	body := []byte(d.Body)
	for _, place := range d.places() {
		var err error
		if body, err = sealer.Open(place, body); err != nil {
			return err
		}
	}
	d.Body = body
	d.opened = true
	return nil
}

// places are what the body is bound to, the outermost seal first: an event that was sealed when it
// was received may have been sealed again when it was parked.
func (d *ParkedDetail) places() (all [][16]byte) {
	switch key := cmp.Or(d.FirstKey, d.Key); {
	case !d.sealedHere:
	case d.Kind == parked.Call && key != nil:
		id, _ := uuid.Parse(*key) // a column of type uuid
		all = append(all, id)
	case d.Topic != nil && d.Partition != nil && d.Offset != nil:
		all = append(all, parked.MessagePlace(d.Scope, *d.Topic, *d.Partition, *d.Offset))
	}
	if d.Topic != nil && d.EventID != nil && reports.SealedEvent(d.Headers) {
		all = append(all, parked.EventPlace(d.Tenant, *d.Topic, *d.EventID))
	}
	return all
}

// ParkedResponse is the answer of a remote that has accepted a call which is still to be completed.
type ParkedResponse struct {
	Status  *int32         `json:"status"`
	Headers *string        `json:"headers"`
	Bytes   *int32         `json:"body_bytes"`
	Body    reports.Octets `json:"body,omitzero" doc:"nil unless it was asked for"`
}

// ParkedByID returns one parked row whole, with its body if body is set: bodies may be private. It
// returns nil if there is no such row. It reads that row, the row that has its body, and the
// unsettled rows of its ordering key.
func ParkedByID(ctx context.Context, db ops.DB, id int64, body bool) (d *ParkedDetail, err error) {
	err = reports.Snapshot(ctx, db, func(tx pgx.Tx) error {
		err := reports.First(ctx, tx, &d, parkedDetailSQL, id, body)
		if err == nil && d != nil {
			d.Decisions, err = reports.DecisionsOf(ctx, tx, id)
		}
		return err
	})
	if err != nil || d == nil {
		return nil, err
	}
	d.Headers = reports.Headers(d.HeaderNames, d.HeaderValues)
	d.sealedHere, d.Sealed = d.Sealed, d.Sealed || reports.SealedEvent(d.Headers)
	if d.ResponseStatus != nil {
		d.Response = &ParkedResponse{d.ResponseStatus, d.ResponseHeaders, d.ResponseBytes, d.ResponseBody}
	}
	return d, nil
}

// ParkedByIDs returns parked rows, without bodies and headers.
func ParkedByIDs(ctx context.Context, db ops.DB, ids []int64) ([]ops.ParkedRow, error) {
	return reports.Look(ctx, db, func(tx pgx.Tx) ([]ops.ParkedRow, error) {
		return reports.ParkedByIDs[ops.ParkedRow](ctx, tx, ids)
	})
}

// Since says what became of the row after it was redriven; empty: it was not, or it is settled.
func (d *ParkedDetail) Since() string {
	switch attempts := show.Count(int64(d.Attempts), "attempt"); {
	case d.Redrives == 0 || d.SettledAt != nil:
		return ""
	case d.State == parked.Retrying && d.Attempts == 0:
		return "redriven, and not tried since"
	case d.State == parked.Retrying:
		return "redriven, and failed again: it is retried after " + attempts
	case d.Attempts > 0:
		return "redriven, and failed again after " + attempts + ": it is " + d.State
	}
	return "redriven: it is " + d.State
}
