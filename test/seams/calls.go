package main

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/seal"
)

// Kinds of remotes.
const (
	plainRemote   = "forgets its rejections"
	keepingRemote = "keeps its rejections"
	layerRemote   = "is an API in our HTTP layer"
	secretRemote  = "is an API in our HTTP layer, and stores no bodies"
)

// calling is a program that enqueues calls outside of handlers.
type calling struct {
	remote  string
	ordered bool
	op      operator
	n       int
}

// The ways in which an attempt ends, and each as often as it is in the list. Those with a plus were
// applied.
var attemptWays = []string{
	wayThrough, "reset+", "reset+", "502+", "504+", "truncated+", "500+", "503+", "101+",
	"reset", "101", "401", "403", "404", "413", "429", "502", "503", "504", "500", "truncated", rejectedWay,
}

// rejectedWay is a request that reaches the application, which rejects it.
const rejectedWay = "rejected"

func drawCalls(d *dice) (stage, []act) {
	x := &calling{
		remote:  of(d, plainRemote, plainRemote, keepingRemote, layerRemote, secretRemote),
		ordered: d.once(2),
		op:      drawOperator(d),
	}
	acts := []act{{"a call is enqueued", x.enqueue}}
	if x.ordered {
		acts = append(acts, act{"a call of the same ordering key is enqueued", x.enqueue})
	}
	for range 1 + d.IntN(3) {
		acts = append(acts, drawAttempt(d))
		if d.once(4) {
			acts = append(acts, drawPass(d))
		}
		if d.once(6) {
			acts = append(acts, x.drawEvent(d)...)
		}
	}
	return x, acts
}

// drawAttempt is one attempt of a relay.
func drawAttempt(d *dice) act {
	way := of(d, attemptWays...)
	name := way
	if name == wayThrough {
		name = "answered"
	}
	return act{"attempt " + name, func(w *world) error {
		if way != rejectedWay {
			return w.send(way)
		}
		w.remote.setRejects(true)
		defer w.remote.setRejects(false)
		return w.send()
	}}
}

func drawPass(d *dice) act {
	long := of(d, 2*time.Hour, 23*time.Hour, 30*time.Hour, 50*time.Hour, 9*24*time.Hour)
	return act{fmt.Sprintf("%v pass", long), func(w *world) error { return w.pass(long) }}
}

// drawEvent is something that happens to a call in between.
func (x *calling) drawEvent(d *dice) []act {
	switch d.IntN(8) {
	case 0:
		return []act{{"the call is enqueued again", x.copy}}
	case 6:
		if x.ownLayer() {
			return []act{{"the remote erases its answers", x.eraseAnswers}}
		}
	case 4:
		return []act{{"the clock is a week ahead", func(w *world) error {
			return w.jump(func(w *world) error { return w.send() }, (*world).forget)
		}}}
	case 5:
		return []act{{"a call for later is enqueued", x.enqueueLater}}
	case 1:
		return []act{{"what has expired is deleted", (*world).forget}}
	case 2:
		return []act{{"an operator decides", func(w *world) error { _, err := w.decide(x.op); return err }}}
	case 3:
		if x.ownLayer() { // what it remembers is in the same database
			return nil
		}
		return []act{{actKeep, (*world).keep}, drawAttempt(d), {actPromote, (*world).promote}}
	}
	return []act{{"outbox rebase", func(w *world) error {
		_, err := ops.Rebase(w.ctx, w.pool, ops.By{Reason: "INC-7"}, ops.RebaseInput{})
		w.say("operator: outbox rebase: %v", err)
		return ignoreRefusal(err)
	}}}
}

func (x *calling) ownLayer() bool { return x.remote == layerRemote || x.remote == secretRemote }

// setUp implements stage.
func (x *calling) setUp(w *world) error {
	w.say("the remote %s", x.remote)
	w.remote.keepsRejections = x.remote != plainRemote
	if !x.ownLayer() {
		return nil
	}
	layer, err := newLayer(w)
	if err != nil {
		return err
	}
	w.remote.app, err = layer.Handle(
		idempotency.Route{Pattern: "/calls", KeyWindow: memory, DiscardBody: x.remote == secretRemote},
		http.HandlerFunc(w.remote.behindLayer),
	)
	return err
}

// newLayer is an HTTP layer with one scope.
func newLayer(w *world) (*idempotency.Layer, error) {
	return idempotency.New(w.pool, idempotency.Config{
		Scope:           idempotency.GlobalScope(),
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}},
		Logger:          w.logger(),
		TenantConns:     12,
	})
}

// behindLayer is the application of a remote that has our HTTP layer.
func (r *remote) behindLayer(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	rejects := r.rejects
	r.mu.Unlock()
	body, _ := io.ReadAll(req.Body)
	tx, err := idempotency.TxOf(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if rejects {
		http.Error(w, "no", http.StatusUnprocessableEntity)
		return
	}
	tx.Queue(effectSQL, "remote "+string(body))
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "shown once")
}

// enqueue enqueues the next call.
func (x *calling) enqueue(w *world) error {
	x.n++
	token := fmt.Sprint("call-", x.n)
	if err := w.enqueue(x.call(x.n)); err != nil {
		return err
	}
	w.promises.add(token, 0, 1)
	return nil
}

func (w *world) enqueue(c outbox.Call) error {
	w.say("enqueued: %s", c.Body)
	return w.within(func(tx pgx.Tx) error { return outbox.Enqueue(w.ctx, tx, c) })
}

// eraseAnswers erases what a remote in our HTTP layer has answered.
func (x *calling) eraseAnswers(w *world) error {
	keys, err := all(w, pgx.RowTo[string], `select key::text from onlyonce.outbox_log`)
	if err != nil {
		return err
	}
	for _, key := range keys {
		_, err := ops.EraseRequest(w.ctx, w.pool, ops.By{Reason: "GDPR-5"}, ops.RequestInput{Scope: "http POST /calls", Key: key})
		w.say("the remote's operator: request erase: %v", err)
		if err := ignoreRefusal(err); err != nil {
			return err
		}
	}
	return nil
}

// enqueueLater enqueues the next call, and says when it is to be made.
func (x *calling) enqueueLater(w *world) error {
	const later = 40 * time.Hour
	x.n++
	c := x.call(x.n)
	c.NotBefore = time.Now().Add(w.now() + later)
	w.remote.schedule(string(c.Body), w.now()+later)
	if err := w.enqueue(c); err != nil {
		return err
	}
	w.promises.add(string(c.Body), 0, 1)
	return nil
}

// copy enqueues the first call once more, as a program does that runs again.
func (x *calling) copy(w *world) error {
	if x.n == 0 {
		return nil
	}
	return w.enqueue(x.call(1))
}

func (x *calling) call(n int) outbox.Call {
	c := outbox.Call{
		Sink:   sinkName,
		Name:   "charge",
		Scope:  "shop",
		ID:     fmt.Sprint(n),
		Target: "/calls",
		Body:   fmt.Appendf(nil, "call-%d", n),
	}
	if x.ordered {
		c.OrderingKey = "account-1"
	}
	return c
}

// settle implements stage.
func (x *calling) settle(w *world) error { return w.settleCalls(x.op) }
