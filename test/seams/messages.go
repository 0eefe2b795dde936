package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/outbox"
)

const (
	scope = "stock"
	topic = "orders"
)

// message is one message of the log, and its copies.
type message struct {
	token   string
	key     string
	offsets []int64
	// from is the time from which its key is remembered for a horizon at least: its first record's,
	// or that of an operator's decision.
	from time.Duration
}

// consuming is a consumer of a log.
type consuming struct {
	policy    consumer.FailurePolicy
	slots     int
	positions bool // it has no ids: a message is its position
	op        operator
	gives     bool   // up, what does not work
	changes   string // the function of the program that changes bytes in place

	log  *memlog.Log
	sent []*message
	sick map[string]bool // tokens whose handler fails for good now
	slow map[string]bool // tokens whose handler fails now, and is tried again
	// halted is set when the partition halts.
	halted atomic.Bool
}

// copiesWithin is how late copies come in a history. The shortest horizon is a day.
const copiesWithin = 20 * time.Hour

func drawMessages(d *dice) (stage, []act) {
	x := &consuming{
		policy: of(d, consumer.ParkMessage, consumer.ParkOrderingKey),
		slots:  of(d, 1, 1, 3),
		op:     drawOperator(d),
		gives:  d.once(4),
		sick:   map[string]bool{},
	}
	x.positions = d.once(3)
	if d.once(3) {
		x.changes = of(d, "Prepare", "Key", "OnParked")
	}
	acts := []act{x.drawMessage(d), x.drawMessage(d)}
	for range 3 + d.IntN(5) {
		switch d.IntN(12) {
		case 0:
			acts = append(acts, x.drawMessage(d))
		case 1, 2:
			n := d.IntN(4)
			acts = append(acts, act{"a copy comes", func(w *world) error { return x.copy(w, n) }})
		case 3, 4:
			acts = append(acts, act{"the consumer works", x.work})
		case 5:
			acts = append(acts, drawAttempt(d))
		case 6, 7:
			acts = append(acts, drawPass(d))
		case 8:
			acts = append(acts, act{"an operator decides about messages", x.decide})
		case 9:
			acts = append(acts, act{"what has expired is deleted", (*world).forget})
		default:
			acts = append(acts, x.drawEvent(d)...)
		}
	}
	return x, acts
}

func (x *consuming) drawMessage(d *dice) act {
	key := of(d, "a", "b")
	sick := d.once(3)
	calls := d.once(2)
	name := "a message of key " + key
	if calls {
		name += " that asks for a call"
	}
	if sick {
		name += ", whose handler fails"
	}
	return act{name, func(w *world) error {
		token := fmt.Sprintf("m-%d", len(x.sent)+1)
		promised := 0
		if calls {
			token += " call"
			promised = 1
		}
		x.sent = append(x.sent, &message{token: token, key: key, from: w.now()})
		x.sick[token] = sick
		x.append(w, x.sent[len(x.sent)-1])
		w.promises.add(token, 1, promised)
		w.promises.outlive(token)
		return nil
	}}
}

func (x *consuming) drawEvent(d *dice) []act {
	switch d.IntN(7) {
	case 5:
		return []act{{"the clock is a week ahead", func(w *world) error { return w.jump(x.work, (*world).forget) }}}
	case 0:
		back := int64(1 + d.IntN(4))
		return []act{{"an operator replays", func(w *world) error { return x.replay(w, back) }}}
	case 3:
		back := int64(1 + d.IntN(4))
		return []act{{"the position is set back", func(w *world) error { return x.setBack(w, back) }}}
	case 1:
		class := of(d, "short", "long", "standard")
		return []act{{"the scope's class becomes " + class, func(w *world) error {
			_, err := ops.ChangeClass(w.ctx, w.pool, ops.By{Reason: "INC-5"}, ops.ClassInput{Scope: scope, Class: class})
			w.say("operator: inbox class %s: %v", class, err)
			return ignoreRefusal(err)
		}}}
	case 2:
		return []act{{"the cursor is adopted at its position", func(w *world) error {
			partition := int32(0)
			_, err := ops.AdoptCursor(
				w.ctx,
				w.pool,
				ops.By{Reason: "INC-6"},
				ops.AdoptInput{Scope: scope, Topic: topic, Partition: &partition},
			)
			w.say("operator: cursor adopt: %v", err)
			return ignoreRefusal(err)
		}}}
	}
	return []act{{actKeep, (*world).keep}, {"the consumer works", x.work}, drawAttempt(d), {actPromote, (*world).promote}}
}

// setUp implements stage. A failover that loses the very cursor would halt the partition, for a
// person to decide.
func (x *consuming) setUp(w *world) error {
	x.log = memlog.NewLog(topic, 1)
	return w.work("there is a cursor", w.is(`select exists (select from onlyonce.positions)`), x.consume(w))
}

func (x *consuming) append(w *world, m *message) {
	at := x.log.AppendMessage(0, &consumer.Message{Key: []byte(m.key), Value: []byte(m.token), Time: time.Now().Add(w.now()),
		Headers: []consumer.Header{{Name: "message-id", Value: []byte(m.token)}}})
	m.offsets = append(m.offsets, at)
	w.say("log: %s at %d", m.token, at)
}

// copy writes a record again, if its producer may: its key is remembered for as long as it is
// parked, and for a day of the log otherwise.
func (x *consuming) copy(w *world, n int) error {
	if len(x.sent) == 0 || x.positions {
		return nil
	}
	m := x.sent[n%len(x.sent)]
	parked, err := one[bool](
		w,
		`
select exists (select from onlyonce.parked
                where kind = 'message' and settled_at is null and convert_from(body, 'UTF8') = $1)`,
		m.token,
	)
	if err == nil && (parked || w.now()-m.from < copiesWithin) {
		x.append(w, m)
	}
	return err
}

// handle is the program's handler.
func (x *consuming) handle(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	token := string(m.Value) // whole, whatever the program's functions do to it (D6)
	switch {
	case x.slow[token]:
		return errors.New("the shop does not answer")
	case x.sick[token]:
		return consumer.Permanent(errors.New("the product is unknown"))
	}
	tx.Queue(effectSQL, token)
	if strings.HasSuffix(token, "call") {
		return outbox.Enqueue(ctx, tx, outbox.Call{Sink: sinkName, Name: "charge", Target: "/charges", Body: m.Value})
	}
	return nil
}

// consume is the consumer.
func (x *consuming) consume(w *world) engine {
	return func(ctx context.Context) error {
		cfg := consumer.Config{
			Scope:         scope,
			PositionsOnly: x.positions,
			OnFailure:     x.policy,
			Concurrency:   x.slots,
			MaxAttempts:   1,
			Linger:        time.Millisecond,
			Brake:         consumer.Brake{Off: true},
			Backoff:       dedupe.Backoff{Min: time.Millisecond, Max: time.Millisecond},
			Logger:        w.logger(),
			Hooks: consumer.Hooks{Halted: func(h *consumer.HaltError) {
				x.halted.Store(true)
				w.say("the partition halts: %s", h.Reason)
			}},
		}
		if len(x.slow) > 0 {
			// A slot keeps its batch until all of it is done, so those behind a slow message wait
			// for it; and one that is parked waits no more.
			cfg.BatchSize = 1
			cfg.MaxAttempts = math.MaxInt32
			cfg.Backoff = dedupe.Backoff{Min: 20 * time.Millisecond, Max: 20 * time.Millisecond}
		}
		if !x.positions {
			cfg.Key = consumer.HeaderKey("message-id")
		}
		x.change(&cfg)
		c, err := consumer.New(w.pool, &memlog.Source{Log: x.log, GroupID: scope}, consumer.HandlerFunc(x.handle), cfg)
		if err != nil {
			return err
		}
		return c.Run(ctx)
	}
}

// appliedSQL reports whether a consumer has nothing to do. In: scope, topic, the end of its log.
const appliedSQL = `
select coalesce((select next_offset from onlyonce.positions where scope = $1 and topic = $2 and partition = 0), 0) >= $3
   and not exists (select from onlyonce.parked p
                    where p.kind <> 'call' and p.scope = $1 and p.settled_at is null
                      and (p.state = 'retrying' or p.state = 'blocked' and not exists (select from onlyonce.parked f
                            where f.kind = p.kind
                              and f.order_key = p.order_key
                              and f.settled_at is null
                              and (f.partition, f."offset") < (p.partition, p."offset"))))`

func (x *consuming) work(w *world) error {
	return w.work("all messages were handled", w.is(appliedSQL, scope, topic, x.log.End(0)), x.consume(w))
}

// decide redrives what is parked, after its cause is mended, or gives it up.
func (x *consuming) decide(w *world) error {
	items, err := w.decideParked("message", x.gives, x.sick)
	for _, p := range items {
		for _, m := range x.sent {
			if m.token == p.Token {
				m.from = w.now()
			}
		}
	}
	return err
}

// replay has the last messages handled again.
func (x *consuming) replay(w *world, back int64) error {
	position, err := one[*int64](w, `select next_offset from onlyonce.positions where scope = $1 and topic = $2 and partition = 0`,
		scope, topic)
	if err != nil || position == nil || *position == 0 {
		return ignoreNoRow(err)
	}
	from := max(0, *position-back)
	waiting, err := all(
		w,
		pgx.RowTo[string],
		`select convert_from(body, 'UTF8') from onlyonce.parked where kind = 'message' and settled_at is null`,
	)
	if err != nil {
		return err
	}
	_, err = ops.Replay(
		w.ctx,
		w.pool,
		ops.By{Reason: "INC-3"},
		ops.ReplayInput{CursorName: ops.CursorName{Scope: scope, Topic: topic}, From: from},
	)
	w.say("operator: replay -from %d: %v", from, err)
	if err != nil {
		return ignoreRefusal(err)
	}
	x.promiseAgain(w, from, *position, waiting)
	return nil
}

// promiseAgain notes that messages of a range are to take effect once more; but not a copy of what
// is parked (K7).
func (x *consuming) promiseAgain(w *world, from, to int64, parked []string) {
	for _, m := range x.sent {
		if slices.ContainsFunc(m.offsets, func(at int64) bool { return at >= from && at < to }) && !slices.Contains(parked, m.token) {
			w.promises.add(m.token, 1, 0)
		}
	}
}

// setBack sets the position back by cursor adopt -at. Messages without ids are applied again.
func (x *consuming) setBack(w *world, back int64) error {
	position, err := one[*int64](w, `select next_offset from onlyonce.positions where scope = $1 and topic = $2 and partition = 0`,
		scope, topic)
	if err != nil || position == nil || *position == 0 {
		return ignoreNoRow(err)
	}
	waiting, err := all(
		w,
		pgx.RowTo[string],
		`select convert_from(body, 'UTF8') from onlyonce.parked where kind = 'message' and settled_at is null`,
	)
	if err != nil {
		return err
	}
	partition := int32(0)
	at := max(0, *position-back)
	_, err = ops.AdoptCursor(
		w.ctx,
		w.pool,
		ops.By{Reason: "INC-2"},
		ops.AdoptInput{Scope: scope, Topic: topic, Partition: &partition, At: fmt.Sprint(at)},
	)
	w.say("operator: cursor adopt -at %d: %v", at, err)
	if err != nil {
		return ignoreRefusal(err)
	}
	if x.positions {
		x.promiseAgain(w, at, *position, waiting)
	}
	return nil
}

// turn changes bytes in place, and back.
func turn(b []byte) {
	for i := range b {
		b[i] ^= ' '
	}
}

// change has one of the program's functions change bytes in place, as one does that decrypts or
// masks them.
func (x *consuming) change(cfg *consumer.Config) {
	switch x.changes {
	case "Prepare":
		cfg.MaxAttempts = 2
		cfg.Prepare = func(ctx context.Context, msgs []*consumer.Message) (context.Context, error) {
			for _, m := range msgs {
				turn(m.Value)
			}
			return ctx, nil
		}
	case "Key":
		if key := cfg.Key; key != nil {
			cfg.Key = func(m *consumer.Message) (string, error) {
				turn(m.Value)
				return key(m)
			}
		}
	case "OnParked":
		cfg.OnParked = func(_ context.Context, _ consumer.Tx, m *consumer.Message, _ consumer.ParkedEvent) error {
			turn(m.Value)
			return nil
		}
	}
}

func ignoreNoRow(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// settle implements stage.
func (x *consuming) settle(w *world) error {
	if err := x.work(w); err != nil {
		return err
	}
	for _, m := range x.sent {
		if err := x.copy(w, slices.Index(x.sent, m)); err != nil {
			return err
		}
	}
	if err := w.settleParked("message", x.work, x.decide); err != nil {
		return err
	}
	return w.settleCalls(x.op)
}
