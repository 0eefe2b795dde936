package main

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/ops"
)

// operating is an API that answers 202, and does its work afterwards.
type operating struct {
	client
	ttl        time.Duration
	operations *idempotency.Operations
	fails      bool // now
	discards   bool
}

func drawOperations(d *dice) (stage, []act) {
	x := &operating{
		client:   client{path: "/exports", told: map[string]told1{}},
		ttl:      of(d, 10*time.Minute, 2*time.Hour, 48*time.Hour),
		discards: d.once(4),
	}
	acts := []act{{"a request", x.request}}
	for range 2 + d.IntN(4) {
		switch d.IntN(10) {
		case 0, 1:
			acts = append(acts, drawPass(d))
		case 2:
			acts = append(acts, act{"a copy", x.request})
		case 3:
			acts = append(acts, act{"the work is done", x.work})
		case 4:
			acts = append(acts, act{"the work fails for good", x.fail})
		case 5:
			acts = append(acts, act{"its client cancels it", x.cancel})
		case 6:
			acts = append(acts, act{"an operator decides", x.decide})
		case 7:
			acts = append(acts, act{"the clock is a week ahead", func(w *world) error { return w.jump((*world).forget, x.request) }})
		case 8:
			between := of(d, act{"a copy", x.request}, act{"the work is done", x.work})
			acts = append(
				acts,
				act{actKeep, (*world).keep},
				between,
				act{actPromote, func(w *world) error { x.void(); return w.promote() }},
			)
		default:
			acts = append(acts, act{"what has expired is deleted", (*world).forget})
		}
	}
	return x, acts
}

// setUp implements stage.
func (x *operating) setUp(w *world) error {
	layer, err := newLayer(w)
	if err != nil {
		return err
	}
	x.operations, err = idempotency.NewOperations(
		layer,
		idempotency.OperationsConfig{PollInterval: 10 * time.Millisecond, Partitions: 2, MaxAttempts: 1,
			Backoff: dedupe.Backoff{Min: time.Millisecond, Max: time.Millisecond}, Logger: w.logger()},
		map[string]idempotency.Work{"export": x.export},
	)
	if err != nil {
		return err
	}
	x.handler, err = layer.Handle(
		idempotency.Route{Pattern: x.path, TTL: x.ttl, NoCalls: true},
		http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
			if err := x.operations.Accept(rw, req, idempotency.Request{Name: "export", Input: []byte("export-1")}); err != nil {
				http.Error(rw, err.Error(), http.StatusInternalServerError)
			}
		}),
	)
	return err
}

// export is the work.
func (x *operating) export(_ context.Context, tx consumer.Tx, op *idempotency.Operation) (json.RawMessage, error) {
	if x.fails {
		panic("the template is missing")
	}
	tx.Queue(effectSQL, string(op.Input))
	return json.RawMessage(`"done"`), nil
}

// runningSQL lists the operations that have not ended.
const runningSQL = `select o.id::text from onlyonce.operations o where o.state = 'running'`

// request sends the request. Each one is a copy of the first: "202: the same key, or the URL in
// Location, until it has ended" (docs/guide/api-clients.md).
func (x *operating) request(w *world) error {
	running, err := all(w, pgx.RowTo[string], runningSQL)
	if err != nil {
		return err
	}
	a, err := x.ask(w, requestKey, "please")
	if err != nil || a.status != http.StatusAccepted || !a.accepted() {
		return err
	}
	if len(running) > 0 {
		w.breach("a copy of a request begins an operation, and the first one's has not ended")
		return nil
	}
	w.promises.add("export-1", 1, 0)
	return nil
}

// idleSQL reports whether no work is to be done: each operation has ended, or its event is parked.
const idleSQL = `
select not exists (select from onlyonce.operations o
                    where o.state = 'running'
                      and not exists (select from onlyonce.parked p
                                       where p.event_id = o.id::text and p.settled_at is null and p.state = 'waiting'))`

func (x *operating) work(w *world) error {
	return w.work("all work was done", w.is(idleSQL), x.operations.Run)
}

func (x *operating) fail(w *world) error {
	x.fails = true
	defer func() { x.fails = false }()
	return x.work(w)
}

// cancel is the client's DELETE.
func (x *operating) cancel(w *world) error {
	was := x.told[requestKey]
	if was.location == "" {
		return nil
	}
	req, err := http.NewRequestWithContext(w.ctx, http.MethodDelete, was.location, nil)
	if err != nil {
		return err
	}
	status := serve(x.operations, req)
	w.say("client: DELETE: %d", status)
	if status/100 == 2 {
		w.promises.giveUp("export-1", false)
	}
	return nil
}

// decide redrives or discards what is parked.
func (x *operating) decide(w *world) error {
	ids, err := all(w, pgx.RowTo[int64], `select id from onlyonce.parked where settled_at is null and state = 'waiting' order by id`)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if x.discards {
			err = w.discard(id, "export-1", false)
		} else {
			err = w.redrive(id, ops.ParkedInput{})
		}
		if err := ignoreRefusal(err); err != nil {
			return err
		}
	}
	return nil
}

// settle implements stage.
func (x *operating) settle(w *world) error {
	for range 5 {
		for _, step := range []func(*world) error{x.request, x.work, x.decide} {
			if err := step(w); err != nil {
				return err
			}
		}
		left, err := all(w, pgx.RowTo[string], runningSQL)
		if err != nil || len(left) == 0 {
			return err
		}
	}
	w.breach("operations never end")
	return errStands
}
