package operate

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// parkedDetailSQL reads one row whole. In: id, whether with its body. One row, or none. By the
// primary key; its place among the unsettled rows of its ordering key by the partial index
// parked_order.
const parkedDetailSQL = `
select p.id, p.kind, p.state, p.reason, p.error, p.attempts, p.next_attempt_at, p.tenant, p.scope, p.key::text as key, p.event_id,
       p.topic, p.partition, p."offset", p.cluster_id, p.topic_id::text as topic_id, p.record_time, p.log_append_time, p.record_key,
       p.header_names, p.header_values, p.sink, p.call_name as name, p.method, p.target, p.replay_no as replay, p.replay_resend,
       p.parked_at, p.settled_at, p.order_key::text as order_key, coalesce(o.ahead, 0) as ahead, coalesce(o.behind, 0) as behind, h.id as head,
       octet_length(p.body) as body_bytes, p.row_id, p.lane, p.first_attempt_at as first_attempt, p.erased_at, p.capture, p.sealed,
       p.first_key::text as first_key, p.trace, p.response_status,
       p.response_headers, octet_length(p.response_body) as response_bytes,
       case when $2::boolean then p.body end as body, case when $2::boolean then p.response_body end as response_body
  from onlyonce.parked p
  left join lateral (
    select count(*) filter (where (f.partition, f."offset") < (p.partition, p."offset")) as ahead,
           count(*) filter (where (f.partition, f."offset") > (p.partition, p."offset")) as behind
      from onlyonce.parked f where f.order_key = p.order_key and f.settled_at is null) o on true
  left join lateral (
    select f.id from onlyonce.parked f
     where f.order_key = p.order_key and f.settled_at is null and (f.partition, f."offset") < (p.partition, p."offset")
     order by f.partition, f."offset" limit 1) h on true
 where p.id = $1`

// parkedWhole is a parked row as the database has it.
type parkedWhole struct {
	ParkedDetail
	HeaderNames, HeaderValues [][]byte
	ResponseStatus            *int32
	ResponseHeaders           *string
	ResponseBytes             *int32
	ResponseBody              []byte
}

// ParkedDetail is everything that is known of one parked row. A nil pointer means: not known, or
// none.
type ParkedDetail struct {
	ops.ParkedItem // its Error is whole

	Key     *string `json:"key" doc:"as stored, a UUID"`
	EventID *string `json:"event_id" doc:"of an event"`

	// Of a message or event.
	ClusterID     *string          `json:"cluster_id"`
	TopicID       *string          `json:"topic_id"`
	RecordTime    *time.Time       `json:"record_time"`
	LogAppendTime bool             `json:"log_append_time" doc:"the broker set RecordTime, and not the producer"`
	RecordKey     reports.Octets   `json:"record_key"`
	Headers       []reports.Header `json:"headers" db:"-"`

	// Of a call.
	Method *string `json:"method"`
	Target *string `json:"target"`

	Replay       int32 `json:"replay" doc:"the replay in which the message was parked; 0: none"`
	ReplayResend bool  `json:"replay_resend"`

	OrderKey *string `json:"order_key" doc:"the ordering key as stored. Ahead and Behind count its unsettled rows before and after this one; Head is the first of those before"`
	Ahead    int64   `json:"ahead"`
	Behind   int64   `json:"behind"`
	Head     *int64  `json:"head"`

	// Of a call: its id and lane in the log of the outbox, since when the remote may know its key,
	// when its body was erased, the key that it was enqueued under if an operator has given it Key
	// since, its trace context, and what a remote answered that has accepted it.
	RowID        *int64          `json:"row_id"`
	Lane         *int16          `json:"lane"`
	FirstAttempt *time.Time      `json:"first_attempt_at"`
	ErasedAt     *time.Time      `json:"erased_at"`
	Capture      bool            `json:"capture" doc:"the answer is kept for RelayConfig.Complete"`
	Sealed       bool            `json:"sealed"`
	FirstKey     *string         `json:"first_key"`
	Trace        *string         `json:"trace"`
	Response     *ParkedResponse `json:"response" db:"-"`

	Decisions []reports.RowDecision `json:"decisions" db:"-" doc:"redrives and discards of it, oldest first"`

	BodyBytes *int32         `json:"body_bytes" doc:"size of the body"`
	Body      reports.Octets `json:"body,omitzero" doc:"nil unless it was asked for"`
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
func ParkedByID(ctx context.Context, db ops.DB, id int64, body bool) (*ParkedDetail, error) {
	var rows []parkedWhole
	err := reports.Snapshot(ctx, db, func(tx pgx.Tx) (err error) {
		if rows, err = reports.Collect[parkedWhole](ctx, tx, parkedDetailSQL, id, body); err == nil && len(rows) > 0 {
			rows[0].Decisions, err = reports.DecisionsOf(ctx, tx, id)
		}
		return err
	})
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return rows[0].detail(), nil
}

// ParkedByIDs returns parked rows, without bodies and headers.
func ParkedByIDs(ctx context.Context, db ops.DB, ids []int64) ([]ops.ParkedItem, error) {
	return reports.Look(ctx, db, func(tx pgx.Tx) ([]ops.ParkedItem, error) { return reports.ParkedByIDs[ops.ParkedItem](ctx, tx, ids) })
}

// Since says what became of the row after it was redriven; empty: it was not, or it is settled.
func (d *ParkedDetail) Since() string {
	redriven := slices.ContainsFunc(d.Decisions, func(r reports.RowDecision) bool { return r.Action == "parked redrive" })
	switch attempts := show.Count(int64(d.Attempts), "attempt"); {
	case !redriven || d.SettledAt != nil:
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

func (p *parkedWhole) detail() *ParkedDetail {
	d := &p.ParkedDetail
	d.Headers = []reports.Header{}
	if p.ResponseStatus != nil {
		d.Response = &ParkedResponse{p.ResponseStatus, p.ResponseHeaders, p.ResponseBytes, p.ResponseBody}
	}
	for i, n := range p.HeaderNames {
		h := reports.Header{Name: strings.ToValidUTF8(string(n), "\uFFFD")}
		if i < len(p.HeaderValues) {
			h.Value = p.HeaderValues[i]
		}
		d.Headers = append(d.Headers, h)
	}
	return d
}
