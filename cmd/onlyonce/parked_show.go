package main

import (
	"context"
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// parkedShowSQL reads one row whole. In: id, whether with its body. One row, or none. By the primary key; its place among the
// unsettled rows of its ordering key by the partial index parked_order.
const parkedShowSQL = `
select p.id, p.kind, p.state, p.reason, p.error, p.attempts, p.next_attempt_at, p.tenant, p.scope, p.key::text as key, p.event_id,
       p.topic, p.partition, p."offset", p.cluster_id, p.topic_id::text as topic_id, p.record_time, p.log_append_time, p.record_key,
       p.header_names, p.header_values, p.sink, p.call_name as name, p.method, p.target, p.replay_no as replay, p.replay_resend,
       p.parked_at, p.settled_at, p.order_key::text as order_key, coalesce(o.ahead, 0) as ahead, coalesce(o.behind, 0) as behind, h.id as head,
       octet_length(coalesce(p.body, c.body)) as body_bytes, p.body_of, p.row_id, p.lane, p.first_attempt_at, p.erased_at, p.capture, p.sealed,
       p.sealed_as::text as sealed_as, p.trace, p.response_status,
       p.response_headers, octet_length(p.response_body) as response_bytes,
       case when $2::boolean then coalesce(p.body, c.body) end as body, case when $2::boolean then p.response_body end as response_body
  from onlyonce.parked p
  left join onlyonce.parked c on c.id = p.body_of
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
	ID            int64
	Kind          string
	State         string
	Reason        string
	Error         string
	Attempts      int32
	NextAttemptAt *time.Time
	Tenant        string
	Scope         string
	Key           *string
	EventID       *string
	Topic         *string
	Partition     *int32
	Offset        *int64
	ClusterID     *string
	TopicID       *string
	RecordTime    *time.Time
	LogAppendTime bool
	RecordKey     []byte
	HeaderNames   [][]byte
	HeaderValues  [][]byte
	Sink          *string
	Name          *string
	Method        *string
	Target        *string
	Replay        int32
	ReplayResend  bool
	ParkedAt      time.Time
	SettledAt     *time.Time
	OrderKey      *string
	Ahead         int64
	Behind        int64
	Head          *int64
	BodyBytes     *int32
	BodyOf        *int64
	Body          []byte

	RowID           *int64
	Lane            *int16
	FirstAttemptAt  *time.Time
	ErasedAt        *time.Time
	Capture         bool
	Sealed          bool
	SealedAs        *string
	Trace           *string
	ResponseStatus  *int32
	ResponseHeaders *string
	ResponseBytes   *int32
	ResponseBody    []byte
}

// octets are bytes for JSON and for people: text where they are UTF-8, else hexadecimal digits; null where there are none.
type octets struct {
	Text *string `json:"text,omitempty"`
	Hex  *string `json:"hex,omitempty"`
}

func octetsOf(b []byte) *octets {
	if b == nil {
		return nil
	}
	if utf8.Valid(b) {
		s := string(b)
		return &octets{Text: &s}
	}
	s := hex.EncodeToString(b)
	return &octets{Hex: &s}
}

// String shows them on one line.
func (o *octets) String() string {
	switch {
	case o == nil:
		return "null"
	case o.Text != nil:
		return strconv.Quote(*o.Text)
	}
	return "hex " + *o.Hex
}

type parkedHeader struct {
	Name  string  `json:"name"`
	Value *octets `json:"value"`
}

// parkedDetail is what `parked show -json` writes.
type parkedDetail struct {
	ID            int64          `json:"id"`
	Kind          string         `json:"kind"`
	State         string         `json:"state"`
	Reason        string         `json:"reason"`
	Error         string         `json:"error"`
	Attempts      int32          `json:"attempts"`
	NextAttemptAt *time.Time     `json:"next_attempt_at"`
	Tenant        string         `json:"tenant"`
	Scope         string         `json:"scope"`
	Key           *string        `json:"key"`
	EventID       *string        `json:"event_id"`
	Topic         *string        `json:"topic"`
	Partition     *int32         `json:"partition"`
	Offset        *int64         `json:"offset"`
	ClusterID     *string        `json:"cluster_id"`
	TopicID       *string        `json:"topic_id"`
	RecordTime    *time.Time     `json:"record_time"`
	LogAppendTime bool           `json:"log_append_time"`
	RecordKey     *octets        `json:"record_key"`
	Headers       []parkedHeader `json:"headers"`
	Sink          *string        `json:"sink"`
	Name          *string        `json:"name"`
	Method        *string        `json:"method"`
	Target        *string        `json:"target"`
	Replay        int32          `json:"replay"`
	ReplayResend  bool           `json:"replay_resend"`
	ParkedAt      time.Time      `json:"parked_at"`
	SettledAt     *time.Time     `json:"settled_at"`
	OrderKey      *string        `json:"order_key"`
	Ahead         int64          `json:"ahead"`
	Behind        int64          `json:"behind"`
	Head          *int64         `json:"head"`
	RowID         *int64         `json:"row_id"`
	Lane          *int16         `json:"lane"`
	FirstAttempt  *time.Time     `json:"first_attempt_at"`
	ErasedAt      *time.Time     `json:"erased_at"`
	Capture       bool           `json:"capture"`
	Sealed        bool           `json:"sealed"`
	SealedAs      *string        `json:"sealed_as"`
	Trace         *string        `json:"trace"`
	Response      *response      `json:"response"`
	BodyBytes     *int32         `json:"body_bytes"`
	BodyOf        *int64         `json:"body_of"`
	Body          *octets        `json:"body,omitempty"`
}

// response is what a remote answered that has accepted a call, which is still to be completed.
type response struct {
	Status  *int32  `json:"status"`
	Headers *string `json:"headers"`
	Bytes   *int32  `json:"body_bytes"`
	Body    *octets `json:"body,omitempty"`
}

func (p *parkedWhole) detail() *parkedDetail {
	utc(p.NextAttemptAt)
	utc(p.FirstAttemptAt)
	utc(p.ErasedAt)
	utc(p.RecordTime)
	utc(&p.ParkedAt)
	utc(p.SettledAt)
	d := &parkedDetail{ID: p.ID, Kind: p.Kind, State: p.State, Reason: p.Reason, Error: p.Error, Attempts: p.Attempts,
		NextAttemptAt: p.NextAttemptAt, Tenant: p.Tenant, Scope: p.Scope, Key: p.Key, EventID: p.EventID, Topic: p.Topic, Partition: p.Partition,
		Offset: p.Offset, ClusterID: p.ClusterID, TopicID: p.TopicID, RecordTime: p.RecordTime, LogAppendTime: p.LogAppendTime,
		RecordKey: octetsOf(p.RecordKey), Headers: []parkedHeader{}, Sink: p.Sink, Name: p.Name, Method: p.Method, Target: p.Target,
		Replay: p.Replay, ReplayResend: p.ReplayResend, ParkedAt: p.ParkedAt, SettledAt: p.SettledAt, OrderKey: p.OrderKey,
		Ahead: p.Ahead, Behind: p.Behind, Head: p.Head, BodyBytes: p.BodyBytes, BodyOf: p.BodyOf, Body: octetsOf(p.Body), RowID: p.RowID, Lane: p.Lane,
		FirstAttempt: p.FirstAttemptAt, ErasedAt: p.ErasedAt, Capture: p.Capture, Sealed: p.Sealed, SealedAs: p.SealedAs, Trace: p.Trace}
	if p.ResponseStatus != nil {
		d.Response = &response{p.ResponseStatus, p.ResponseHeaders, p.ResponseBytes, octetsOf(p.ResponseBody)}
	}
	for i, n := range p.HeaderNames {
		h := parkedHeader{Name: strings.ToValidUTF8(string(n), "\uFFFD")}
		if i < len(p.HeaderValues) {
			h.Value = octetsOf(p.HeaderValues[i])
		}
		d.Headers = append(d.Headers, h)
	}
	return d
}

func parkedShowCommand() command {
	return command{
		name:    "parked show",
		args:    "[-postgres URL] -id N [-body] [-json]",
		summary: "show one parked row whole: headers, error, place in its ordering key",
		help: `
Shows everything of one parked row but its body, which may be private: -body adds that. Values are shown as text where they are
UTF-8 and as hexadecimal digits where not. It changes nothing.

With -json, one object:
  id, kind, state, reason, error (whole), attempts, tenant, scope, key (as stored), event_id
  topic, partition, offset, cluster_id, topic_id, record_time, log_append_time, record_key   of a message, else null
  headers                    list of {name, value}
  sink, name, method, target of a call, else null
  replay, replay_resend      of a message: the replay that it was parked in, 0 for none
  next_attempt_at            in state retrying: when it is due
  row_id, lane               of a call: its id and lane in the log of the outbox, else null
  first_attempt_at           of a call: since when the remote may know its key; null: it was never made
  erased_at, capture, sealed, trace   of a call
  sealed_as                  of a sealed call: the key that its body was sealed under, if that is not key; else null
  response                   {status, headers, body_bytes, body (with -body only)} of a call that was accepted, else null
  order_key (as stored), ahead, behind, head   unsettled rows of its ordering key before and behind it, and the first of those before
  parked_at, settled_at      times
  body_bytes, body           body with -body only
  body_of                    of a copy that has no body of its own (same-body): the row that has it, and whose body is shown; else null
record_key, value and body are {"text": ...} or {"hex": ...}, or null.

Example:
  onlyonce parked show -id 4711 -body`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			var id *int64
			numberVar(fs, &id, "id", "the row's id `N`, as `onlyonce parked list` shows it", 1, math.MaxInt64)
			body := fs.Bool("body", false, "show the body too")
			return func(ctx context.Context, a *app) error {
				if err := missing(given{"-id", id != nil}); err != nil {
					return err
				}
				var rows []parkedWhole
				err := a.readSnapshot(ctx, *address, "reading a parked row", func(ctx context.Context, tx pgx.Tx) (err error) {
					rows, err = collect[parkedWhole](ctx, tx, parkedShowSQL, *id, *body)
					return err
				})
				switch {
				case err != nil:
					return err
				case len(rows) == 0:
					return usagef("-id: there is no parked row %d", *id)
				case *asJSON:
					return writeJSON(a.out, rows[0].detail())
				}
				a.writeParkedRow(rows[0].detail(), *body)
				return nil
			}
		},
	}
}

func (a *app) writeParkedRow(d *parkedDetail, body bool) {
	row := func(name, value string) {
		if value != "" {
			_, _ = fmt.Fprintf(a.out, "%-15s %s\n", name, cell(value))
		}
	}
	text := func(name string, s *string) {
		if s != nil {
			row(name, *s)
		}
	}
	moment := func(name string, t *time.Time) {
		if t != nil {
			row(name, instant(*t))
		}
	}
	row("id", number(d.ID))
	row("kind", d.Kind)
	row("state", d.State)
	row("reason", d.Reason)
	row("attempts", strconv.Itoa(int(d.Attempts)))
	moment("next attempt", d.NextAttemptAt)
	row("scope", d.Scope)
	row("tenant", d.Tenant)
	if d.Topic != nil && d.Partition != nil && d.Offset != nil {
		row("origin", fmt.Sprintf("%s/%d@%d", *d.Topic, *d.Partition, *d.Offset))
	}
	text("cluster", d.ClusterID)
	text("topic id", d.TopicID)
	moment("record time", d.RecordTime)
	if d.Kind == "message" {
		row("record key", d.RecordKey.String())
	}
	text("sink", d.Sink)
	text("name", d.Name)
	text("method", d.Method)
	text("target", d.Target)
	text("key", d.Key)
	if d.Kind == kindEvent && d.EventID != nil && d.Topic != nil && strings.HasPrefix(*d.Topic, "webhook.") {
		if part := strings.SplitN(*d.EventID, "/", 3); len(part) == 3 { // endpoint, provider, and the id as its sender knows it
			row("provider", part[1])
			row("event id", part[2])
		}
	} else {
		text("event id", d.EventID)
	}
	if d.Lane != nil {
		row("lane", strconv.Itoa(int(*d.Lane)))
	}
	if d.RowID != nil {
		row("log id", number(*d.RowID))
	}
	moment("first attempt", d.FirstAttempt)
	if r := d.Response; r != nil {
		row("response", fmt.Sprintf("status %s, %s bytes", numberOf(r.Status), numberOf(r.Bytes)))
		if r.Headers != nil {
			for line := range strings.Lines(*r.Headers) {
				row("response header", strings.TrimRight(line, "\r\n"))
			}
		}
		if r.Body != nil {
			row("response body", r.Body.String())
		}
	}
	if d.Replay > 0 {
		row("replay", fmt.Sprintf("%d, calls under keys of their own: %s", d.Replay, yesNo(d.ReplayResend)))
	}
	if d.OrderKey != nil {
		place := fmt.Sprintf("%s: %d unsettled before it, %d behind it", *d.OrderKey, d.Ahead, d.Behind)
		if d.Head != nil {
			place += fmt.Sprintf("; first is row %d", *d.Head)
		}
		row("ordering key", place)
	}
	row("parked at", instant(d.ParkedAt))
	moment("settled at", d.SettledAt)
	moment("erased at", d.ErasedAt)
	for _, h := range d.Headers {
		row("header", h.Name+": "+h.Value.String())
	}
	for line := range strings.Lines(d.Error) {
		row("error", strings.TrimRight(line, "\r\n"))
	}
	switch {
	case d.BodyBytes == nil:
		row("body", "none")
	case d.ErasedAt != nil:
		row("body", "erased")
	case !body:
		row("body", fmt.Sprintf("%d bytes; -body shows them", *d.BodyBytes))
	default:
		row("body", d.Body.String())
	}
}

func numberOf(n *int32) string {
	if n == nil {
		return "-"
	}
	return number(int64(*n))
}
