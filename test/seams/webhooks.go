package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/webhook"
)

// providerEvent is an event of the sender: what it is about is its token.
type providerEvent struct {
	id, token string
	at        time.Duration // when it happened
	told      bool          // it was answered 200
	heard     time.Duration // when it was so first
	rendered  int           // how often its body was rendered anew
}

// receiving is an endpoint of a sender that signs ids (Stripe), or of one that does not (GitHub).
// Somebody has recorded each request of the latter.
type receiving struct {
	signed   bool
	inline   bool
	backfill bool

	endpoint *webhook.Endpoint
	run      func(context.Context) error // of its consumer; nil if it is inline
	sent     []*providerEvent
	made     int // ids that a stranger has made up
	sick     bool
	listed   atomic.Bool // a backfill has ended

	token func(body []byte) (string, error) // what an event is about; "": nothing
}

const endpointName = "e"

const webhookSecret = "whsec_of_the_histories"

// deliveredWithin is how long a sender delivers an event again, and a stranger may send a recorded
// body without being refused for its age.
const deliveredWithin = 60 * time.Hour

func drawWebhooks(d *dice) (stage, []act) {
	x := &receiving{signed: d.once(3), inline: d.once(2), backfill: d.once(2), token: tokenOfJSON}
	acts := []act{{"an event is delivered", x.deliverNew}}
	for range 4 + d.IntN(5) {
		acts = append(acts, of(d, x.possible(d)...)...)
	}
	return x, acts
}

// possible are the things that may happen next, one of which is drawn.
func (x *receiving) possible(d *dice) [][]act {
	n := d.IntN(3)
	all := [][]act{
		{{"an event is delivered", x.deliverNew}},
		{{"an event is delivered, and its handler fails", x.deliverSick}},
		{{"an event is delivered again", func(w *world) error { return x.again(w, n) }}},
		{{"stored events are applied", x.work}},
		{{"what has expired is deleted", x.forget}},
		{drawPass(d)},
		{{"the clock is a week ahead", func(w *world) error { return w.jump(x.forget) }}},
	}
	if x.signed {
		all = append(all, []act{{"an event is delivered again, rendered anew", func(w *world) error { return x.anew(w, n) }}})
	}
	if !x.signed {
		all = append(
			all,
			[]act{{"a recorded body comes under an id that is made up", func(w *world) error { return x.recorded(w, n, "") }}},
			[]act{{
				"a recorded body comes under the id of the next event",
				func(w *world) error { return x.recorded(w, n, fmt.Sprint("evt_", len(x.sent)+1)) },
			}},
		)
	}
	all = append(all, []act{{"an operator decides", x.decide}})
	if x.backfill {
		all = append(all, []act{{"a backfill", x.list}}, []act{{"an event's delivery is lost", x.lose}, {"a backfill", x.list}})
	}
	return all
}

// setUp implements stage.
func (x *receiving) setUp(w *world) error {
	cfg := webhook.Config{
		Name:         endpointName,
		Provider:     webhook.GitHub{},
		Secrets:      []string{webhookSecret},
		Partitions:   1,
		Logger:       w.logger(),
		PollInterval: 10 * time.Millisecond,
	}
	if x.signed {
		cfg.Provider = webhook.Stripe{}
	}
	if x.inline {
		cfg.Mode = webhook.Inline
		cfg.Handler = consumer.HandlerFunc(x.handle)
	}
	if x.backfill {
		cfg.Hooks.Backfilled = func(webhook.BackfilledEvent) { x.listed.Store(true) }
		cfg.Backfill = &webhook.Backfill{List: func(_ context.Context, since time.Time, each func(*webhook.Event) error) error {
			return x.each(w, since, each)
		}}
	}
	w.say("the sender signs ids: %t; inline: %t", x.signed, x.inline)
	var err error
	x.endpoint, err = webhook.New(w.pool, cfg)
	if err != nil || x.inline {
		return err
	}
	worker, err := consumer.New(w.pool, x.endpoint, consumer.HandlerFunc(x.handle), consumer.Config{
		Scope:       webhook.Scope(endpointName),
		MaxAttempts: 1,
		Linger:      time.Millisecond,
		Brake:       consumer.Brake{Off: true},
		Logger:      w.logger(),
	})
	if err != nil {
		return err
	}
	x.run = worker.Run
	return nil
}

// handle is the program's handler.
func (x *receiving) handle(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
	token, err := x.token(m.Value)
	switch {
	case err != nil:
		return err
	case x.sick:
		return errors.New("the order is unknown")
	case token != "":
		tx.Queue(effectSQL, token)
	}
	return nil
}

func tokenOfJSON(body []byte) (string, error) {
	var b struct{ N string }
	err := json.Unmarshal(body, &b)
	return b.N, err
}

// body is an event's, as it is rendered for a delivery.
func (e *providerEvent) body() string {
	return fmt.Sprintf(`{"id":%q,"type":"paid","N":%q,"pending":%d,"repository":{"pushed_at":%q}}`, e.id, e.token, e.rendered, e.at)
}

// post sends a body, as its sender signs it.
func (x *receiving) post(w *world, id, body string) int {
	req := httptest.NewRequestWithContext(w.ctx, http.MethodPost, "/", strings.NewReader(body))
	mac := func(s string) string {
		h := hmac.New(sha256.New, []byte(webhookSecret))
		_, _ = h.Write([]byte(s))
		return hex.EncodeToString(h.Sum(nil))
	}
	at := fmt.Sprint(time.Now().Unix())
	req.Header.Set("Stripe-Signature", "t="+at+",v1="+mac(at+"."+body))
	req.Header.Set("X-Hub-Signature-256", "sha256="+mac(body))
	req.Header.Set("X-GitHub-Delivery", id)
	req.Header.Set("X-GitHub-Event", "push") // whose bodies name themselves
	rec := httptest.NewRecorder()
	x.endpoint.ServeHTTP(rec, req)
	w.say("sender: %s %s: %d duplicate %q", id, body, rec.Code, rec.Header().Get("Webhook-Duplicate"))
	return rec.Code
}

// deliver delivers an event.
func (x *receiving) deliver(w *world, e *providerEvent) error {
	status := x.post(w, e.id, e.body())
	if status == http.StatusOK && !e.told {
		e.told = true
		e.heard = w.now()
		w.promises.add(e.token, 1, 0)
	}
	if status/100 == 4 {
		w.breach("an event is answered %d", status)
	}
	return nil
}

// lose is an event whose delivery does not arrive.
func (x *receiving) lose(w *world) error {
	n := len(x.sent) + 1
	x.sent = append(x.sent, &providerEvent{id: fmt.Sprint("evt_", n), token: fmt.Sprint("event-", n), at: w.now()})
	return nil
}

func (x *receiving) deliverNew(w *world) error {
	if err := x.lose(w); err != nil {
		return err
	}
	return x.deliver(w, x.sent[len(x.sent)-1])
}

func (x *receiving) deliverSick(w *world) error {
	x.sick = true
	defer func() { x.sick = false }()
	if err := x.deliverNew(w); err != nil || x.inline {
		return err
	}
	return x.work(w)
}

// young returns an event that its sender may still deliver; nil: there is none.
func (x *receiving) young(w *world, n int) *providerEvent {
	if len(x.sent) == 0 {
		return nil
	}
	if e := x.sent[n%len(x.sent)]; w.now()-e.at < deliveredWithin {
		return e
	}
	return nil
}

func (x *receiving) again(w *world, n int) error {
	e := x.young(w, n)
	if e == nil {
		return nil
	}
	return x.deliver(w, e)
}

func (x *receiving) anew(w *world, n int) error {
	e := x.young(w, n)
	if e == nil {
		return nil
	}
	e.rendered++
	return x.deliver(w, e)
}

// recorded is a stranger who sends a recorded body under another id, or one that is made up. An
// event that is accepted so counts as the sender's, whose body it is.
func (x *receiving) recorded(w *world, n int, id string) error {
	e := x.young(w, n)
	if e == nil {
		return nil
	}
	if id == "" {
		x.made++
		id = fmt.Sprint("made-up-", x.made)
	}
	if status := x.post(w, id, e.body()); status == http.StatusOK && !e.told {
		e.told = true
		e.heard = w.now()
		w.promises.add(e.token, 1, 0)
	}
	return nil
}

// each lists the sender's events since a time.
func (x *receiving) each(w *world, since time.Time, each func(*webhook.Event) error) error {
	for _, e := range x.sent {
		happened := time.Now().Add(e.at) // by the clock of the history, give or take the seconds that it takes
		if happened.Before(since) || w.now()-e.at > deliveredWithin {
			continue
		}
		if !e.told { // it is accepted by this
			e.told = true
			e.heard = w.now()
			w.promises.add(e.token, 1, 0)
		}
		if err := each(&webhook.Event{ID: e.id, Type: "push", Time: happened, Body: []byte(e.body())}); err != nil {
			return err
		}
	}
	return nil
}

// list waits until a backfill is due, and lets it run.
func (x *receiving) list(w *world) error {
	if err := w.pass(16 * time.Minute); err != nil {
		return err
	}
	x.listed.Store(false)
	return w.work("the backfill was made", func() (bool, error) { return x.listed.Load(), nil }, x.endpoint.Upkeep)
}

// storedSQL reports whether all stored events were handled. In: scope, topic.
const storedSQL = `
select coalesce((select next_offset from onlyonce.positions where scope = $1 and topic = $2), 0)
        >= coalesce(
          (select max(b.next_offset)
             from onlyonce.streams s, onlyonce.stream_bounds(s.id, 0::smallint) b where s.topic = $2),
          0
        )
   and not exists (select from onlyonce.parked p
                    where p.kind = 'event'
                      and p.scope = $1
                      and p.settled_at is null
                      and p.state in ('retrying', 'blocked'))`

func (x *receiving) work(w *world) error {
	if x.inline {
		return nil
	}
	return w.work("all events were handled", w.is(storedSQL, webhook.Scope(endpointName), webhook.Topic(endpointName)), x.run)
}

// workAside lets a consumer apply what an operator has redriven. An inline endpoint has none by
// itself, and no stream (docs/operations/webhooks.md).
func (x *receiving) workAside(w *world) error {
	if !x.inline {
		return x.work(w)
	}
	return w.work(
		"redriven events were handled",
		w.is(`select exists (select from onlyonce.positions) and `+strings.TrimPrefix(strings.TrimSpace(storedSQL), "select"),
			webhook.Scope(endpointName), webhook.Topic(endpointName)),
		func(ctx context.Context) error {
			source, err := webhook.NewSource(w.pool, webhook.SourceConfig{
				Group:        endpointName,
				Endpoints:    []string{endpointName},
				Partitions:   1,
				PollInterval: 10 * time.Millisecond,
				Logger:       w.logger(),
			})
			if err != nil {
				return err
			}
			c, err := consumer.New(w.pool, source, consumer.HandlerFunc(x.handle), consumer.Config{
				Scope:       webhook.Scope(endpointName),
				MaxAttempts: 1,
				Linger:      time.Millisecond,
				Logger:      w.logger(),
			})
			if err != nil {
				return err
			}
			return c.Run(ctx)
		},
	)
}

// forget lets ids and bodies go whose retention has passed: Endpoint.Upkeep does so when it begins.
func (x *receiving) forget(w *world) error {
	if err := x.work(w); err != nil {
		return err
	}
	return w.forget()
}

// decide decides about events that are parked: what was applied is given up, and all else is tried
// again.
func (x *receiving) decide(w *world) error {
	if err := x.work(w); err != nil { // what is stored is as good as applied
		return err
	}
	type row struct {
		ID     int64
		Reason string
		Body   []byte
	}
	rows, err := all(
		w,
		pgx.RowToStructByPos[row],
		`
select id, reason, body
  from onlyonce.parked where kind = 'event' and settled_at is null and state = 'waiting' order by id`,
	)
	if err != nil {
		return err
	}
	if len(rows) > 0 { // so that there is a stream
		if err := x.workAside(w); err != nil {
			return err
		}
	}
	for _, r := range rows {
		token, err := x.token(r.Body)
		if err != nil {
			return err
		}
		applied, err := one[bool](w, `select exists (select from effects where value = $1)`, token)
		if err != nil {
			return err
		}
		stored, err := one[bool](
			w,
			`
select exists (select from onlyonce.parked p
                where p.kind = 'event' and p.id < $1 and p.settled_at is null and p.body = $2)`,
			r.ID,
			r.Body,
		)
		if err != nil {
			return err
		}
		if token == "" || applied || stored {
			_, err = ops.Discard(w.ctx, w.pool, ops.By{Reason: "a copy"}, ops.ParkedInput{ParkedFilter: ops.ParkedFilter{ID: r.ID}})
			w.say("operator: discard %d: %v", r.ID, err)
		} else {
			err = w.redrive(r.ID, ops.ParkedInput{})
		}
		if err := ignoreRefusal(err); err != nil {
			return err
		}
		if err := x.workAside(w); err != nil {
			return err
		}
	}
	return nil
}

// settle implements stage: each event is delivered until it is answered 200, and once more.
func (x *receiving) settle(w *world) error {
	if err := x.work(w); err != nil {
		return err
	}
	for range 2 {
		for n, e := range x.sent {
			if !e.told {
				e.at = w.now() // the sender's schedule begins anew: an operator there has asked for it
			}
			if err := x.again(w, n); err != nil {
				return err
			}
		}
	}
	for _, step := range []func(*world) error{x.work, x.decide, x.work, x.decide, x.work} {
		if err := step(w); err != nil {
			return err
		}
	}
	return nil
}
