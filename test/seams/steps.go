package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/ops"
)

// stepping is an API in lease mode, whose handler calls the remote in a step.
type stepping struct {
	client
	reconciles bool // the API asks the remote about steps that are too old
	accepted   bool
}

const stepToken = "10 EUR"

func drawSteps(d *dice) (stage, []act) {
	x := &stepping{client: client{path: "/payments", told: map[string]told1{}}, reconciles: d.once(3)}
	var acts []act
	for range 2 + d.IntN(4) {
		switch d.IntN(6) {
		case 0, 1, 2:
			way := of(d, wayThrough, "reset+", "502+", "truncated+", "500+", "reset", "401", "404", "503")
			acts = append(acts, act{"the client asks, and the step is " + way, func(w *world) error {
				w.remote.next(way)
				defer w.remote.next()
				return x.request(w)
			}})
		case 3:
			acts = append(acts, drawPass(d))
		case 4:
			acts = append(acts, act{"what has expired is deleted", (*world).forget})
		default:
			acts = append(acts, act{"an operator decides", x.decide})
		}
	}
	return x, acts
}

// setUp implements stage.
func (x *stepping) setUp(w *world) error {
	layer, err := newLayer(w)
	if err != nil {
		return err
	}
	route := idempotency.Route{Pattern: x.path, KeyWindow: memory, Mode: idempotency.Leased}
	if x.reconciles {
		route.Reconcile = func(context.Context, string, string) (idempotency.StepOutcome, []byte, error) {
			applied, err := w.remote.counts()
			if applied[stepToken] > 0 {
				return idempotency.StepTookEffect, []byte("paid"), err
			}
			return idempotency.StepNoEffect, nil, err
		}
	}
	x.handler, err = layer.Handle(route, http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) { x.handle(w, rw, req) }))
	return err
}

// handle is the program's handler: an answer of 4xx is the gateway's here, and no result.
func (x *stepping) handle(w *world, rw http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	_, err := idempotency.Step(req.Context(), "charge", func(ctx context.Context, key string) ([]byte, error) {
		call, err := http.NewRequestWithContext(ctx, http.MethodPost, w.remote.server.URL, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		call.Header.Set("Idempotency-Key", key)
		resp, err := w.remote.server.Client().Do(call)
		if err != nil {
			return nil, err
		}
		defer func() { _ = resp.Body.Close() }()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return nil, err
		}
		if resp.StatusCode/100 != 2 {
			return nil, fmt.Errorf("status %d", resp.StatusCode)
		}
		return []byte("paid"), nil
	})
	if err != nil {
		w.say("handler: %v", err)
		http.Error(rw, err.Error(), http.StatusConflict) // nothing is kept
		return
	}
	tx, err := idempotency.TxOf(req)
	if err == nil {
		_, err = tx.Exec(req.Context(), effectSQL, string(body))
	}
	if err != nil {
		http.Error(rw, err.Error(), http.StatusConflict)
		return
	}
	rw.WriteHeader(http.StatusCreated)
}

// request is the request, or a copy. Each client asks until it has its answer.
func (x *stepping) request(w *world) error {
	if x.accepted {
		return nil
	}
	a, err := x.ask(w, requestKey, stepToken)
	if err == nil && a.status/100 == 2 {
		x.accepted = true
		w.promises.add(stepToken, 1, 1)
	}
	return err
}

// asideSQL lists requests that wait for an operator, with the step that is open.
const asideSQL = `
select r.id::text, s.name
  from onlyonce.http_records r
  join onlyonce.http_steps s on s.record_id = r.id where r.state = 'reconcile' and s.done_at is null`

// decide is the command request resolve, by one who has looked at the remote.
func (x *stepping) decide(w *world) error {
	type open struct{ ID, Step string }
	rows, err := all(w, pgx.RowToStructByPos[open], asideSQL)
	if err != nil {
		return err
	}
	for _, r := range rows {
		applied, err := w.remote.counts()
		if err != nil {
			return err
		}
		in := ops.ResolveRequestInput{ID: r.ID, Step: r.Step, Applied: applied[stepToken] > 0, NotApplied: applied[stepToken] == 0}
		if in.Applied {
			in.Result = []byte("paid")
		}
		_, err = ops.ResolveRequest(w.ctx, w.pool, ops.By{Reason: "INC-9"}, in)
		w.say("operator: request resolve: applied %t: %v", in.Applied, err)
		if err != nil {
			return err
		}
	}
	return nil
}

// settle implements stage: the client asks until it has an answer.
func (x *stepping) settle(w *world) error {
	for range 6 {
		if err := x.request(w); err != nil || x.accepted {
			return err
		}
		if err := x.decide(w); err != nil {
			return err
		}
		if err := w.pass(time.Hour); err != nil {
			return err
		}
	}
	w.breach("the client never gets an answer")
	return errStands
}
