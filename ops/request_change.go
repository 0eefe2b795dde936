package ops

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/seal"
)

// keySQL is the id of a request. In: tenant, scope, key.
const keySQL = `select onlyonce.key($1, $2, $3)::text`

// lockRequestSQL locks a record, and lockRequestLeaseSQL its lease: a process that completes the
// request or takes it over waits. In: id.
const lockRequestSQL = `
select r.id from onlyonce.http_records r where r.id = $1 for update`

// lockOperationsSQL locks the operations that a request has made: their workers cannot end them
// meanwhile. In: id.
const lockOperationsSQL = `
select o.id from onlyonce.operations o where o.record_id = $1 order by o.id for update`

const lockRequestLeaseSQL = `
select l.id
  from onlyonce.leases l where l.id = (select r.lease_id from onlyonce.http_records r where r.id = $1) for update`

// requestOperationsSQL finds the operations that a request has made and that are not erased. In:
// id. By the index operations_record.
const requestOperationsSQL = `
select o.id::text as id,
       o.topic,
       o.state,
       o.tenant,
       o.created_at
  from onlyonce.operations o
 where o.record_id = $1 and o.erased_at is null order by o.id`

// eraseRequestSQL erases an answer, what its steps have remembered, and its operations. In: id. See
// the function's comment.
const eraseRequestSQL = `select onlyonce.http_erase($1)`

// stepAppliedSQL stores what an operator has found out as a step's result, stepAbsentSQL deletes
// the record that it was begun, and reopenSQL lets the next request go on. stepSealedSQL reads
// whether the layer that began a step seals. In: id, and the step's name, and its result, and
// whether that is sealed.
const (
	stepAppliedSQL = `
update onlyonce.http_steps
   set done_at = clock_timestamp(), result = $3, sealed = $4 where record_id = $1 and name = $2 and done_at is null`
	stepAbsentSQL = `delete from onlyonce.http_steps where record_id = $1 and name = $2 and done_at is null`
	reopenSQL     = `update onlyonce.http_records set state = 'running' where id = $1 and state = 'reconcile'`
	stepSealedSQL = `select sealed from onlyonce.http_steps where record_id = $1 and name = $2 and done_at is null`
	freeSQL       = `
update onlyonce.leases
   set until = clock_timestamp(), nonce = null
 where id = (select r.lease_id from onlyonce.http_records r where r.id = $1)`
)

// openSealSQL, closeSQL and closeSealSQL complete a request without an answer: a record that
// becomes completed needs the seal. fenceOffSQL fences out a process that has just read that it may
// take the request over: it no longer finds the epoch that it has read. In: id.
const (
	openSealSQL = `select onlyonce.http_open('10s', '30s', '30s')`
	fenceOffSQL = `
update onlyonce.leases
   set epoch = epoch + 1, nonce = null, until = clock_timestamp()
 where id = (select r.lease_id from onlyonce.http_records r where r.id = $1)`
	closeSQL = `
update onlyonce.http_records
   set state = 'completed',
       response = null,
       completed_at = clock_timestamp(),
       erased_at = clock_timestamp(),
       expires_at = clock_timestamp() + keep,
       watched_at = (select w.at from onlyonce.watched w)
 where id = $1 and state in ('running', 'reconcile')`
	closeSealSQL = `select onlyonce.seal()`
)

// ResolveRequestInput is the input of [ResolveRequest].
type ResolveRequestInput struct {
	// ID is the request's id, a UUID, and Step the name of its step. Both are required.
	ID   string
	Step string

	// Applied or NotApplied is the step's outcome, as a person has found out. One of the two is
	// required.
	Applied    bool
	NotApplied bool

	// Result is the step's result for the handler when the request is sent again. Set it only with
	// Applied.
	Result []byte

	// Sealer encrypts the result. It must be given if the layer that began the step seals results.
	Sealer *seal.Sealer

	// Shown is the result of a dry run with the same input that a person agreed to. If the request
	// has another state or other open steps by now, the error is of kind ErrChanged.
	Shown *RequestChange
}

// Check returns an error of kind ErrInvalid unless the fields go together.
func (in *ResolveRequestInput) Check() error {
	switch {
	case in.Applied && in.NotApplied:
		return failf(ErrInvalid, "`NotApplied`: contradicts `Applied`")
	case !in.Applied && !in.NotApplied:
		return failf(ErrInvalid, "missing: `Applied` or `NotApplied`")
	case in.NotApplied && in.Result != nil:
		return failf(ErrInvalid, "`Result`: a call without an effect has none")
	case in.NotApplied && in.Sealer != nil:
		return failf(ErrInvalid, "`Sealer`: nothing is sealed with `NotApplied`")
	}
	return checkText("`Step`", in.Step)
}

// RequestInput is the input of [CloseRequest] and [EraseRequest].
type RequestInput struct {
	// ID is the request's id, a UUID. If it is empty, Tenant, Scope and Key name the request.
	ID string

	// Tenant, Scope and Key are the request's: for example, the scope "http POST /v1/charges" and
	// the Idempotency-Key. They must be empty if ID is set.
	Tenant string
	Scope  string
	Key    string

	// Shown is the result of a dry run with the same input that a person agreed to. If the request
	// has another state or other open steps by now, the error is of kind ErrChanged.
	Shown *RequestChange
}

// RequestChange is the result of a decision about a request, and the request as it was.
type RequestChange struct {
	Audited
	Request

	Step    *string `json:"step,omitempty"`
	Applied *bool   `json:"applied,omitempty"`

	// those that the request has made, of which an erasure erases the result and the input. They
	// may outlive the request's record: then its State is "purged"
	Operations []RequestOperation `json:"operations,omitempty" doc:"above"`
}

// RequestOperation is an operation that a request has made.
type RequestOperation struct {
	ID        string    `json:"id" doc:"a UUID, as its client has it"`
	Topic     string    `json:"topic" doc:"the stream of its event"`
	State     string    `json:"state"`
	Tenant    string    `json:"tenant"`
	CreatedAt time.Time `json:"created_at"`
}

// ResolveRequest records the unknown outcome of a step of a request in lease mode. When the client
// sends the request again, the handler gets Result as the step's result with Applied; with
// NotApplied it calls the provider again, under the step's key.
//
// Errors are of kind ErrNotFound if there is no such request, ErrInvalid if it has no such step or
// if the result must be sealed, ErrRefused if the request is running or completed, and ErrChanged.
// It waits for a copy of the request that is being handled.
func ResolveRequest(ctx context.Context, db DB, by By, in ResolveRequestInput) (*RequestChange, error) {
	if err := in.Check(); err != nil {
		return nil, err
	}
	c := &requestChange{id: in.ID, step: &in.Step, applied: in.Applied, result: in.Result, sealer: in.Sealer}
	return decide(ctx, db, requestKind("request resolve"), by, c, in.Shown)
}

// CloseRequest completes a request in lease mode without an answer: one that is left, abandoned or
// set aside. The effects of its steps at the provider stay, and the handler's own writes never
// happen. Copies of the request get 410 until its record expires.
//
// Errors are of kind ErrNotFound if there is no such request, ErrRefused if it is running or
// completed, and ErrChanged.
func CloseRequest(ctx context.Context, db DB, by By, in RequestInput) (*RequestChange, error) {
	return in.decide(ctx, db, by, "request close", true)
}

// EraseRequest erases the stored answer of a completed request, and the results of its steps. The
// record stays until it expires, so copies get 410 and do not run again. It also erases result,
// progress and input of the request's operations, the input in the log and in parked rows.
//
// Errors are of kind ErrNotFound if there is no such request, ErrRefused if it is not completed or
// one of its operations has not ended, ErrNothing if all is erased already, and ErrChanged (H19).
func EraseRequest(ctx context.Context, db DB, by By, in RequestInput) (*RequestChange, error) {
	return in.decide(ctx, db, by, "request erase", false)
}

func (in *RequestInput) decide(ctx context.Context, db DB, by By, action string, closes bool) (*RequestChange, error) {
	if err := in.Check(); err != nil {
		return nil, err
	}
	return decide(
		ctx,
		db,
		requestKind(action),
		by,
		&requestChange{id: in.ID, tenant: in.Tenant, scope: in.Scope, key: in.Key, close: closes},
		in.Shown,
	)
}

// Check returns an error of kind ErrInvalid unless the fields go together.
func (in *RequestInput) Check() error {
	named := in.Tenant != "" || in.Scope != "" || in.Key != ""
	switch {
	case in.ID != "" && named:
		return failf(ErrInvalid, "`ID`: names the request by itself")
	case in.ID == "" && (in.Scope == "" || in.Key == ""):
		return failf(ErrInvalid, "missing: `ID`, or `Scope` and `Key`")
	}
	return nil
}

func requestKind(action string) kind {
	return kind{action: action, subject: "the request", look: "onlyonce request list"}
}

type requestChange struct {
	id                 string
	tenant, scope, key string
	step               *string
	applied            bool
	result             []byte
	sealer             *seal.Sealer
	close              bool
}

func (c *requestChange) check() error {
	if c.id == "" && c.key != "" {
		return nil
	}
	id, err := uuid.Parse(c.id)
	if err != nil {
		return failf(ErrInvalid, "`ID`: %q is no UUID", c.id)
	}
	c.id = id.String()
	return nil
}

func (c *requestChange) lock(ctx context.Context, tx pgx.Tx) error {
	id, err := c.identify(ctx, tx)
	if err != nil {
		return err
	}
	for _, sql := range []string{lockRequestSQL, lockRequestLeaseSQL, lockOperationsSQL} {
		if _, err := tx.Exec(ctx, sql, id); err != nil {
			return err
		}
	}
	return nil
}

func (c *requestChange) identify(ctx context.Context, tx pgx.Tx) (string, error) {
	if c.id != "" {
		return c.id, nil
	}
	var id string
	err := tx.QueryRow(ctx, keySQL, c.tenant, c.scope, c.key).Scan(&id)
	return id, err
}

func (c *requestChange) read(ctx context.Context, tx pgx.Tx) (*RequestChange, error) {
	id, err := c.identify(ctx, tx)
	if err != nil {
		return nil, err
	}
	rows, _, err := reports.Requests[Request](ctx, tx, reports.RequestFilter{All: true, ID: id, Limit: 1})
	if err != nil {
		return nil, err
	}
	d := &RequestChange{Step: c.step}
	if c.step == nil && !c.close {
		if err = reports.Into(ctx, tx, &d.Operations, requestOperationsSQL, id); err != nil {
			return nil, err
		}
	}
	switch {
	case len(rows) > 0:
		d.Request = rows[0]
	case len(d.Operations) > 0:
		d.Request = Request{
			ID:        id,
			State:     "purged",
			Tenant:    d.Operations[0].Tenant,
			CreatedAt: d.Operations[0].CreatedAt,
		}
	default:
		return nil, failf(ErrNotFound, "there is no request %s: it was never made, or is purged", id)
	}
	if c.close {
		if !slices.Contains([]string{"left", "abandoned", "reconcile"}, d.State) {
			return nil, failf(ErrRefused, "the request is %s, and nothing was done: only one that is left, "+
				"abandoned or set aside can be closed", d.State)
		}
		return d, nil
	}
	if c.step == nil {
		switch {
		case d.State != "completed" && d.State != "purged":
			return nil, failf(ErrRefused, "the request is not completed (%s), and nothing was done: what is "+
				"kept of it is needed to end it", d.State)
		case d.ErasedAt != nil && len(d.Operations) == 0:
			return nil, failf(ErrNothing, "The answer to request %s was erased already: nothing was changed.", d.ID)
		}
		for _, o := range d.Operations {
			if o.State == "running" {
				return nil, failf(ErrRefused, "operation %s of the request has not ended, and nothing was "+
					"done: it needs its input; see `onlyonce operation list`", o.ID)
			}
		}
		return d, nil
	}
	d.Applied = &c.applied
	switch {
	case d.State != "reconcile" && d.State != "left" && d.State != "abandoned":
		return nil, failf(ErrRefused, "the request is %s, and nothing was done: only one that is set aside, "+
			"or left, can be resolved", d.State)
	case !slices.Contains(d.Unknown, *c.step):
		return nil, failf(ErrInvalid, "`Step`: the request has no step %q of unknown outcome, but: %s",
			*c.step, strings.Join(d.Unknown, ", "))
	case c.applied && c.sealer == nil:
		var sealed bool
		if err := tx.QueryRow(ctx, stepSealedSQL, id, *c.step).Scan(&sealed); err != nil {
			return nil, err
		}
		if sealed {
			return nil, failf(ErrInvalid, "`Sealer`: must be given, because the layer that began the step "+
				"seals results: TEXT would lie in the table as it is, and a layer with RequireSealed would not read it")
		}
	}
	return d, nil
}

// stored is what is kept of -result.
func (c *requestChange) stored(id string) (result []byte, sealed bool, err error) {
	if c.sealer == nil {
		return c.result, false, nil
	}
	record, err := uuid.Parse(id)
	if err != nil {
		return nil, false, err
	}
	result, err = c.sealer.Seal(codec.SealPlace(record, "step", *c.step), c.result)
	return result, true, err
}

func (c *requestChange) differs(shown, now *RequestChange) bool {
	return shown.State != now.State ||
		!slices.Equal(shown.Unknown, now.Unknown) ||
		len(shown.Operations) != len(now.Operations)
}

func (c *requestChange) do(ctx context.Context, tx pgx.Tx, _ By, now *RequestChange) (*RequestChange, error) {
	exec := func(sql string, args ...any) func() error {
		return func() error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		}
	}
	var steps []func() error
	switch {
	case c.close:
		steps = append(steps, exec(openSealSQL), exec(fenceOffSQL, now.ID), exec(closeSQL, now.ID), exec(closeSealSQL))
	case c.step == nil:
		steps = append(steps, exec(eraseRequestSQL, now.ID))
	case c.applied:
		result, sealed, err := c.stored(now.ID)
		if err != nil {
			return nil, err
		}
		steps = append(steps, exec(stepAppliedSQL, now.ID, *c.step, result, sealed))
	default:
		steps = append(steps, exec(stepAbsentSQL, now.ID, *c.step))
	}
	if c.step != nil && len(now.Unknown) == 1 { // the last one
		steps = append(steps, exec(reopenSQL, now.ID), exec(freeSQL, now.ID))
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return now, nil
}
