package operate

import (
	"context"

	"github.com/onlyonce/onlyonce/ops"
)

// Resolve is the input of "request resolve".
type Resolve struct {
	ops.ResolveRequestInput
	SealKeys string // the program reads Sealer of it
}

// Check returns an error unless the fields go together.
func (in *Resolve) Check() error {
	switch err := in.ResolveRequestInput.Check(); {
	case err != nil:
		return err
	case in.NotApplied && in.SealKeys != "":
		return &ops.Error{Kind: ops.ErrInvalid, Reason: "`SealKeys`: nothing is sealed with `NotApplied`"}
	case in.Applied && in.Result == nil:
		return &ops.Error{
			Kind:   ops.ErrInvalid,
			Reason: "missing: `Result`, what the step returns to the handler (an empty text if it returns nothing)",
		}
	}
	return nil
}

func resolveFields(in *Resolve) []Field {
	result := At(&in.Result, "result", "TEXT", "what the step returns, TEXT").
		asked("Result", "What the step returns to the handler. Only if it was applied.")
	result.blank = true
	return []Field{
		At(&in.ID, "id", "ID", "the request's ID, as onlyonce request list shows it").needed(),
		At(&in.Step, "step", "NAME", "the step's NAME").needed(),
		Option(&in.Applied, "applied", "the step was applied").
			asked("The provider applied it", ""),
		Option(&in.NotApplied, "not-applied", "it had no effect").
			asked("It had none: the call is made again, under its key", ""),
		result,
		At(&in.SealKeys, "seal-keys", "FILE", "the layer's sealing keys, in FILE"),
	}
}

func resolveRequest() *Decision {
	return entry[Resolve, ops.RequestChange]{
		Decision: Decision{
			Name:    "request resolve",
			Summary: "record the outcome of a step whose outcome is unknown",
			Help: `
Records the outcome of an external call that a request in lease mode has begun and that is unknown
here. Ask the provider first. With -applied the handler gets TEXT as the step's result when the
request is sent again, and continues: give what the step would have returned, mostly the provider's
answer (-result "" where it returns nothing). With -not-applied the call is made again, under the
key that it had. The audit row does not have TEXT.

Where the layer seals results FILE must hold its keys, and the first one seals: {"seal_keys":
[{"id": 1, "key": SECRET}]}, as in the configuration of "onlyonce-relay": 32 bytes in base64, as
{"file": PATH} or {"env": NAME}.

Example:
  onlyonce request resolve -id 5f0c... -step charge -applied -result '{"id":"ch_1"}' -reason "found
      at the provider, ticket 812"`,
			Waits: "waiting for the request",
			Page:  "resolve",
			Title: "Resolve a step",
			Means: "A request has begun an external call, and its outcome is not known. Ask the provider, " +
				"and record here what happened. When the client sends the request again, it continues from there.",
		},
		fields: resolveFields,
		needs:  []string{"applied", "not-applied"},
		shown:  func(in *Resolve) **ops.RequestChange { return &in.Shown },
		do: func(ctx context.Context, db ops.DB, by ops.By, in Resolve) (*ops.RequestChange, error) {
			return ops.ResolveRequest(ctx, db, by, in.ResolveRequestInput)
		},
		would: func(in *Resolve, d *ops.RequestChange) Said {
			s := request(d)
			if in.Applied {
				s.say("Step %s was applied. The next copy of the request continues after it.", in.Step)
			} else {
				s.say("Step %s: it had no effect. The next copy of the request calls the provider again, "+
					"under the same key.", in.Step)
			}
			return s
		},
	}.decision()
}

func requestFields(in *ops.RequestInput) []Field {
	return []Field{
		At(&in.ID, "id", "ID", "the request's ID, as onlyonce request list shows it"),
		At(&in.Tenant, "tenant", "T", "the tenant T (default: none)"),
		At(&in.Scope, "scope", "S", "the scope S"),
		At(&in.Key, "key", "KEY", "the idempotency key, KEY"),
	}
}

func shownRequest(in *ops.RequestInput) **ops.RequestChange { return &in.Shown }

func closeRequest() *Decision {
	return entry[ops.RequestInput, ops.RequestChange]{
		Decision: Decision{
			Name:    "request close",
			Summary: "end a request that no client comes back for",
			Help: `
Ends a request in lease mode that was never completed, without an answer: one that is left,
abandoned or set aside. Nothing else ends one that has a step, because a copy of it would make its
calls again. Ask the provider first what its steps did, and set that right: what the handler would
have written is never written. Copies of the request get 410, until its record expires as a
completed one does.

Example:
  onlyonce request close -id 5f0c... -reason "refunded by hand, ticket 812"`,
			Danger: true,
			Waits:  "waiting for the request",
			Page:   "close",
			Title:  "Close the request",
			Means: "The request is completed without an answer. What its steps did at the provider stays, " +
				"and what its handler would have written is never written. Copies of it get 410.",
		},
		fields: requestFields,
		shown:  shownRequest,
		do:     ops.CloseRequest,
		would: func(_ *ops.RequestInput, d *ops.RequestChange) Said {
			s := request(d)
			s.say("Close the request: copies of it get 410 and do not run. What its steps did at the " +
				"provider stays, and what the handler would have written is never written.")
			return s
		},
	}.decision()
}

func eraseRequest() *Decision {
	return entry[ops.RequestInput, ops.RequestChange]{
		Decision: Decision{
			Name:    "request erase",
			Summary: "erase the stored answer to a request",
			Help: `
Erases the stored answer to a request, and the stored results of its steps: for a data-erasure
request. If it has made an operation, the operation's result and input are erased too, even if the
record has expired before. The request must be completed, and its operation must have ended. The
record stays until it expires, so that copies get 410 and do not run again. A cache of the layer may
serve the answer until its entries expire (Config.CacheTTL); backups, and standbys that lag, hold it
longer.

KEY is the idempotency key, S the scope: "http POST /v1/charges", and the principal, URL-escaped,
after another space. If the answer is erased already, nothing is written, and the status is 0.

Example:
  onlyonce request erase -tenant acct_17 -scope "http POST /v1/charges" -key order-118 -reason "GDPR request 118"`,
			Danger: true,
			Waits:  "waiting for the request",
		},
		fields: requestFields,
		shown:  shownRequest,
		do:     ops.EraseRequest,
		would: func(_ *ops.RequestInput, d *ops.RequestChange) Said {
			s := request(d)
			s.say("Erase the answer. It cannot be brought back; copies of the request get 410 and do not run.")
			for _, o := range d.Operations {
				s.say("Erase the result and the input of its operation %s (%s).", o.ID, o.State)
			}
			return s
		},
	}.decision()
}

// request shows the request that a decision is about.
func request(d *ops.RequestChange) Said {
	columns, rows := RequestColumns.Table([]ops.Request{d.Request})
	return Said{Columns: columns, Rows: rows}
}
