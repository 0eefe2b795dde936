package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/outbox"
)

// Ways in which a program is asked for something under a key.
const (
	transactional = "transactional"
	leased        = "leased"
	do            = "Do"
)

// answer is what a client gets.
type answer struct {
	status   int
	mark     string // Idempotency-Status
	location string
	until    time.Duration // until when the answer is given, as it says; 0: it does not
}

// accepted reports whether the answer says that the request took effect, now and not earlier.
func (a answer) accepted() bool { return a.status/100 == 2 && a.mark == "created" }

// client asks a program under keys, and remembers what it was told.
type client struct {
	handler http.Handler
	path    string
	// told has what was said of a key, by the answer that was given first.
	told map[string]told1
}

// told1 is what a client was told under a key.
type told1 struct {
	answer
	body   string
	voided bool // a failover has lost it, or an operator has ended it
}

// ask sends a request. It breaches if a copy is accepted anew for which the answer was promised.
func (c *client) ask(w *world, key, body string) (answer, error) {
	req := httptest.NewRequestWithContext(w.ctx, http.MethodPost, c.path, bytes.NewReader([]byte(body)))
	req.Header.Set("Idempotency-Key", key)
	rec := httptest.NewRecorder()
	c.handler.ServeHTTP(rec, req)
	a := answer{status: rec.Code, mark: rec.Header().Get("Idempotency-Status"), location: rec.Header().Get("Location")}
	if at, err := time.Parse(http.TimeFormat, rec.Header().Get("Idempotency-Expires")); err == nil {
		a.until = time.Until(at)
	}
	w.say("client: %s under %q: %d %s %s %.80s", body, key, a.status, a.mark, a.location, bytes.TrimSpace(rec.Body.Bytes()))
	was, asked := c.told[key]
	if a.accepted() {
		if asked && !was.voided && w.now() < was.until {
			w.breach("a copy under %q is accepted anew at %v, and the first answer was to be given until %v", key, w.now(), was.until)
		}
		c.told[key] = told1{answer: a, body: body}
	}
	if a.status == http.StatusInternalServerError {
		w.breach("%s under %q is answered %d %s", body, key, a.status, bytes.TrimSpace(rec.Body.Bytes()))
	}
	return a, nil
}

// void notes that what clients were told does not hold any more.
func (c *client) void() {
	for key, was := range c.told {
		was.voided = true
		c.told[key] = was
	}
}

// requesting is an API whose requests ask for a call each.
type requesting struct {
	client
	mode      string
	ordered   bool
	scheduled time.Duration
	op        operator
	n         int
}

const requestKey = "order-17"

func drawRequests(d *dice) (stage, []act) {
	x := &requesting{client: client{path: "/charges", told: map[string]told1{}}, mode: of(d, transactional, transactional, leased, do), ordered: d.once(3), op: drawOperator(d)}
	if d.once(4) {
		x.scheduled = of(d, 30*time.Hour, 60*time.Hour, 100*time.Hour)
	}
	acts := []act{{"a request", x.request}}
	for range 2 + d.IntN(4) {
		switch d.IntN(8) {
		case 0, 1:
			acts = append(acts, drawAttempt(d))
		case 2, 3:
			acts = append(acts, drawPass(d))
		case 4:
			acts = append(acts, act{"a copy", x.copy})
		case 5:
			acts = append(acts, act{"another request under the key", x.request})
		default:
			acts = append(acts, x.drawEvent(d)...)
		}
	}
	return x, acts
}

func (x *requesting) drawEvent(d *dice) []act {
	switch d.IntN(6) {
	case 0:
		return []act{{"an operator decides", func(w *world) error { _, err := w.decide(x.op); return err }}}
	case 1:
		return []act{{"the request is erased", x.erase}}
	case 2:
		if x.scheduled == 0 { // what is scheduled is sent a week early then (docs/operations/keys.md)
			return []act{{"the clock is a week ahead", func(w *world) error {
				return w.jump(func(w *world) error { return w.send() }, (*world).forget, x.copy)
			}}}
		}
	case 3:
		between := of(d, drawAttempt(d), act{"another request under the key", x.request})
		return []act{{actKeep, (*world).keep}, between, {actPromote, func(w *world) error { x.void(); return w.promote() }}}
	}
	return []act{{"what has expired is deleted", (*world).forget}}
}

// setUp implements stage.
func (x *requesting) setUp(w *world) error {
	w.say("the API works by %s", x.mode)
	layer, err := newLayer(w)
	if err != nil {
		return err
	}
	if x.mode == do {
		doer, err := idempotency.NewDoer(layer, idempotency.DoerConfig{Scope: "charge", KeyWindow: memory})
		x.handler = http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) { x.do(w, doer, rw, req) })
		return err
	}
	route := idempotency.Route{Pattern: x.path, KeyWindow: memory}
	if x.mode == leased {
		route.Mode = idempotency.Leased
	}
	x.handler, err = layer.Handle(route, http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) { x.handle(w, rw, req) }))
	return err
}

// handle is the program's handler.
func (x *requesting) handle(w *world, rw http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	tx, err := idempotency.TxOf(req)
	if err == nil {
		err = x.effect(req.Context(), w, tx, string(body))
	}
	if err != nil {
		w.say("handler: %v", err)
		http.Error(rw, err.Error(), http.StatusConflict) // nothing is kept
		return
	}
	rw.WriteHeader(http.StatusCreated)
}

// do is the program's function. Its answers look as the layer's.
func (x *requesting) do(w *world, doer *idempotency.Doer, rw http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	_, mark, err := idempotency.Do(req.Context(), doer, idempotency.Scope{}, req.Header.Get("Idempotency-Key"), string(body), func(ctx context.Context, tx consumer.Tx) (string, error) {
		return "done", x.effect(ctx, w, tx, string(body))
	})
	rw.Header().Set("Idempotency-Status", string(mark))
	if err != nil {
		http.Error(rw, err.Error(), http.StatusConflict)
		return
	}
	rw.WriteHeader(http.StatusCreated)
}

// effect is what a request does: an effect here, and a call.
func (x *requesting) effect(ctx context.Context, w *world, tx consumer.Tx, token string) error {
	tx.Queue(effectSQL, token)
	c := outbox.Call{Sink: sinkName, Name: "charge", Target: "/charges", Body: []byte(token)}
	if x.ordered {
		c.OrderingKey = "account-1"
	}
	if x.scheduled > 0 {
		c.NotBefore = time.Now().Add(w.now() + x.scheduled)
		w.remote.schedule(token, w.now()+x.scheduled)
	}
	return outbox.Enqueue(ctx, tx, c)
}

// request is a request with a body that did not come before.
func (x *requesting) request(w *world) error {
	x.n++
	return x.send(w, fmt.Sprintf("%d EUR", 10*x.n))
}

// copy is the latest request once more.
func (x *requesting) copy(w *world) error {
	if x.n == 0 {
		return nil
	}
	return x.send(w, fmt.Sprintf("%d EUR", 10*x.n))
}

func (x *requesting) send(w *world, token string) error {
	a, err := x.ask(w, requestKey, token)
	if err == nil && a.accepted() {
		w.promises.add(token, 1, 1)
	}
	return err
}

// erase erases the answer, of a person who is to be forgotten.
func (x *requesting) erase(w *world) error {
	scope := "http POST " + x.path
	if x.mode == do {
		scope = "do charge"
	}
	_, err := ops.EraseRequest(w.ctx, w.pool, ops.By{Reason: "GDPR-4"}, ops.RequestInput{Scope: scope, Key: requestKey})
	w.say("operator: request erase: %v", err)
	return ignoreRefusal(err)
}

// settle implements stage: a copy comes, all calls are settled, and the client uses its key for
// another request once the record has expired.
func (x *requesting) settle(w *world) error {
	steps := []func(*world) error{
		x.copy,
		func(w *world) error { return w.settleCalls(x.op) },
		(*world).forget,
		x.request,
		func(w *world) error { return w.settleCalls(x.op) },
		func(w *world) error { return w.pass(50 * time.Hour) },
		(*world).forget,
		x.request,
		func(w *world) error { return w.settleCalls(x.op) },
	}
	for _, step := range steps {
		if err := step(w); err != nil {
			return err
		}
	}
	return nil
}

// serve serves a request, and returns the answer's status.
func serve(h http.Handler, req *http.Request) int {
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	return rec.Code
}
