package main

import (
	"context"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/queuetest"
)

// queuing is a consumer of a queue's messages.
type queuing struct {
	broker queuetest.Memory
	sent   []*message
	sick   map[string]bool
	gives  bool
}

const queueName = "q"

func drawQueues(d *dice) (stage, []act) {
	x := &queuing{sick: map[string]bool{}, gives: d.once(3)}
	acts := []act{x.drawMessage(d)}
	for range 3 + d.IntN(4) {
		n := d.IntN(3)
		switch d.IntN(9) {
		case 8:
			acts = append(acts, act{"the clock is a week ahead", func(w *world) error { return w.jump(x.work, (*world).forget) }})
		case 0:
			acts = append(acts, x.drawMessage(d))
		case 1, 2:
			acts = append(acts, act{"a copy comes", func(w *world) error { return x.copy(w, n) }})
		case 3:
			acts = append(acts, act{"the id comes with another body", func(w *world) error { return x.conflict(w, n) }})
		case 4:
			acts = append(acts, act{"the consumer works", x.work})
		case 5:
			acts = append(acts, drawPass(d))
		case 6:
			acts = append(acts, act{"an operator decides", x.decide})
		default:
			acts = append(acts, act{"what has expired is deleted", (*world).forget})
		}
	}
	return x, acts
}

func (x *queuing) drawMessage(d *dice) act {
	sick := d.once(3)
	name := "a message"
	if sick {
		name += ", whose handler fails"
	}
	return act{name, func(w *world) error {
		token := fmt.Sprintf("q-%d", len(x.sent)+1)
		x.sick[token] = sick
		x.sent = append(x.sent, &message{token: token, from: w.now()})
		x.publish(w, token, token)
		w.promises.add(token, 1, 0)
		return nil
	}}
}

func (x *queuing) publish(w *world, id, token string) {
	w.say("broker: %s under %s", token, id)
	x.broker.Publish(queue.Delivery{ID: id, Body: []byte(token)})
}

// copy publishes a message again, as a producer does that had no answer.
func (x *queuing) copy(w *world, n int) error {
	if m := x.young(w, n); m != nil {
		x.publish(w, m.token, m.token)
	}
	return nil
}

// conflict publishes another message under the id of one.
func (x *queuing) conflict(w *world, n int) error {
	m := x.young(w, n)
	if m == nil {
		return nil
	}
	token := fmt.Sprintf("%s-other-%d", m.token, len(m.offsets)+1)
	m.offsets = append(m.offsets, 0)
	x.publish(w, m.token, token)
	w.promises.add(token, 1, 0)
	return nil
}

func (x *queuing) young(w *world, n int) *message {
	if len(x.sent) == 0 {
		return nil
	}
	if m := x.sent[n%len(x.sent)]; w.now()-m.from < copiesWithin {
		return m
	}
	return nil
}

// setUp implements stage.
func (x *queuing) setUp(*world) error { return nil }

func (x *queuing) handle(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
	if x.sick[string(m.Value)] {
		return consumer.Permanent(fmt.Errorf("the product of %s is unknown", m.Value))
	}
	tx.Queue(effectSQL, string(m.Value))
	return nil
}

func (x *queuing) work(w *world) error {
	run := func(ctx context.Context) error {
		q, err := queue.New(w.pool, x.broker.Connect(), queue.Config{
			Name:         queueName,
			CopiesWithin: 72 * time.Hour,
			Partitions:   1,
			PollInterval: 10 * time.Millisecond,
			Logger:       w.logger(),
		})
		if err != nil {
			return err
		}
		c, err := consumer.New(w.pool, q, consumer.HandlerFunc(x.handle), consumer.Config{
			Scope:       scope,
			MaxAttempts: 1,
			Linger:      time.Millisecond,
			Brake:       consumer.Brake{Off: true},
			Backoff:     dedupe.Backoff{Min: time.Millisecond, Max: time.Millisecond},
			Logger:      w.logger(),
		})
		if err != nil {
			return err
		}
		return c.Run(ctx)
	}
	return w.work("all messages were handled", func() (bool, error) {
		if x.broker.Left() > 0 {
			return false, nil
		}
		return one[bool](w, storedSQL, scope, queue.Topic(queueName))
	}, run)
}

// decide redrives what is parked, after its cause is mended, or gives it up. Of a conflict both are
// messages.
func (x *queuing) decide(w *world) error {
	_, err := w.decideParked("event", x.gives, x.sick)
	return err
}

// settle implements stage.
func (x *queuing) settle(w *world) error {
	for n := range x.sent {
		if err := x.copy(w, n); err != nil {
			return err
		}
	}
	return w.settleParked("event", x.work, x.decide)
}
