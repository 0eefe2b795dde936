package onlyoncetest

import (
	"context"
	"slices"

	"github.com/onlyonce/onlyonce/internal/rig/histories"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/queuetest"
)

// Broker returns a broker with the case's messages of a topic, in place of the real one:
//
//	cfg := queue.Config{Name: "orders", CopiesWithin: time.Hour, Identify: identify}
//	q, err := queue.New(p.Pool, p.Broker("orders"), cfg)
//	if err != nil {
//		return nil, err
//	}
//	return consumer.New(p.Pool, q, consumer.HandlerFunc(hold), p.Tune(consumer.Config{}))
//
// A delivery has the message's ID, Key, headers and value. If a process dies before it has
// acknowledged a message, for example after the COMMIT that stores it, the next one gets it marked
// as redelivered. With copies, the producer sends each message again in the end. [Process.Source]
// does not have the messages of a broker.
func (p *Process) Broker(topic string) queue.Broker {
	x := p.run
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.brokers[topic]
	if m == nil {
		m = &queuetest.Memory{}
		x.brokers[topic] = m
		x.logs.remove(topic)
		for _, one := range x.sent {
			if one.topic() == topic {
				m.Publish(one.delivery())
			}
		}
	}
	c := &connection{m.Connect(), p, topic}
	x.connections = append(x.connections, c)
	return c
}

// delivery returns the message as a broker delivers it.
func (m Message) delivery() queue.Delivery {
	r := m.record()
	return queue.Delivery{ID: m.ID, Key: r.Key, Headers: r.Headers, Body: r.Value}
}

// connection is a process's connection to a broker. It breaks when the process dies or stops.
type connection struct {
	queue.Broker
	p     *Process
	topic string
}

func (c *connection) broken() bool {
	x := c.p.run
	x.mu.Lock()
	defer x.mu.Unlock()
	return c.p.dead.Load() || x.zombie == c.p
}

// Begin implements queue.Broker.
func (c *connection) Begin(ctx context.Context, ordered bool) error {
	if c.broken() {
		return errDead
	}
	return c.Broker.Begin(ctx, ordered)
}

// Receive implements queue.Broker.
func (c *connection) Receive(ctx context.Context, most int) ([]*queue.Delivery, error) {
	all, err := c.Broker.Receive(ctx, most)
	if c.broken() {
		c.End()
		return nil, errDead
	}
	if len(all) > 0 {
		c.p.run.say(c.p, histories.Plain, "receives %d of %s", len(all), c.topic)
	}
	return all, err
}

// Ack implements queue.Broker.
func (c *connection) Ack(ctx context.Context, all []*queue.Delivery) error {
	if c.broken() {
		return errDead
	}
	c.p.run.say(c.p, histories.Plain, "acknowledges %d of %s", len(all), c.topic)
	return c.Broker.Ack(ctx, all)
}

// End gives back what the connection has not acknowledged.
func (c *connection) End() { c.Broker.(queue.BrokerEnd).End() }

// receives reports whether a process has a broker.
func (x *play) receives(p *Process) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.ContainsFunc(x.connections, func(c *connection) bool { return c.p == p })
}

// giveBack gives back what processes have not acknowledged.
func (x *play) giveBack() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range x.connections {
		c.End()
	}
}

// send puts messages into their topics: those of brokers, and those in memory.
func (x *play) send(msgs []Message) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var rest []Message
	for _, m := range msgs {
		if b := x.brokers[m.topic()]; b != nil {
			b.Publish(m.delivery())
		} else {
			rest = append(rest, m)
		}
	}
	x.logs.add(rest...)
}

// acknowledged reports whether no broker has messages left.
func (x *play) acknowledged() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, b := range x.brokers {
		if b.Left() > 0 {
			return false
		}
	}
	return true
}
